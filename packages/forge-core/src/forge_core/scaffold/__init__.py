"""New packages from templates: ``forge-cute new``.

The templates are packages of their own, under sample names: linted, typed and tested where they lie.  Copier copies one
of them and writes the names of the new package in place of the sample names.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import keyword
import re
import stat
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from jinja2.ext import Extension

from forge_core.errors import ArgumentError, UnsupportedError

__all__ = ["KINDS", "Names", "create"]

#: What a package can be made from: a row program on the row engine, or a CuTe DSL kernel of its own.
KINDS = ("rows", "kernel")

TEMPLATE = Path(__file__).with_name("template")

#: By sample name, the field of :class:`Names` that takes its place.
SAMPLES = {
    "packages/sample-rows/tests": "tests",
    "packages/sample-kernel/tests": "tests",
    "forge-sample-rows": "distribution",
    "forge-sample-kernel": "distribution",
    "forge_sample_rows": "module",
    "forge_sample_kernel": "module",
    "sample_suite": "suite",
    "sample_norm": "operator",
    "sample_scale": "operator",
    "SampleNorm": "class_name",
    "SampleScale": "class_name",
}


class SampleNames(Extension):
    """The extension of Jinja that Copier loads by the template's settings."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """A file's contents, or its path, with the expression ``[[ field ]]`` for each sample name."""
        # An alternation takes the first that matches, and the longer names stand first.
        return re.sub("|".join(SAMPLES), lambda found: f"[[ {SAMPLES[found[0]]} ]]", source)


@dataclass(frozen=True)
class Names:
    """The names of a package and of its operator; as Copier's answers."""

    kind: str  # one of KINDS
    name: str  # of its folder
    distribution: str  # what pip installs
    module: str  # what Python imports; also the namespace of its operator
    operator: str
    class_name: str  # of the row program or of the kernel
    suite: str  # of its benchmarks and proofs
    tests: str  # the folder of its tests, from where `forge-cute prove` runs

    @classmethod
    def of(
        cls, name: str, operator: str | None = None, kind: str = "rows", *, prefix: str = "", folder: str = ""
    ) -> Names:
        """The names that follow from that of the package.

        Args:
            name: for example ``"week3-norm"``.
            operator: for example ``"rms_norm"``; by default the last word of ``name``.
            kind: one of ``KINDS``.
            prefix: of the distribution and the module, for example ``"forge-"``.
            folder: where the package lies, from the root of its repository; "" for the root.

        Raises:
            ArgumentError: a name that no package or no operator can have.
        """
        if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
            raise _refused("name", "lower-case words and digits, joined by hyphens, such as week3-norm", name)
        operator = name.rpartition("-")[2] if operator is None else operator
        if not re.fullmatch(r"[a-z][a-z0-9_]*", operator) or keyword.iskeyword(operator):
            raise _refused("operator", "a lower-case identifier, such as rms_norm", operator)
        if kind not in KINDS:
            raise _refused("kind", " or ".join(KINDS), kind)
        distribution = f"{prefix}{name}"
        return cls(
            kind=kind,
            name=name,
            distribution=distribution,
            module=distribution.replace("-", "_"),
            operator=operator,
            class_name="".join(word.capitalize() for word in operator.split("_")),
            suite=name.partition("-")[0] if re.match(r"week\d+-", name) else name.replace("-", "_"),
            tests=f"{folder}/{name}/tests" if folder else "tests",
        )


def create(names: Names, into: Path) -> Path:
    """Makes a package as a subfolder of ``into``, the whole of it or nothing; returns its folder.

    Raises:
        ArgumentError: a name that is taken; nothing is written.
        UnsupportedError: Copier is not installed.
    """
    target = into / names.name
    _require_free(names, target)
    try:
        import copier
    except ImportError as error:
        raise UnsupportedError(
            "forge-cute new: needs Copier, which is not installed. Install it: pip install 'forge-cute-core[new]'",
            requirement="copier",
        ) from error
    into.mkdir(parents=True, exist_ok=True)
    # Made beside its place, on the same file system, and moved there when it is whole.
    with tempfile.TemporaryDirectory(prefix=f".{names.name}-", dir=into) as folder:
        made = Path(folder) / names.name
        copier.run_copy(str(TEMPLATE), made, data=asdict(names), defaults=True, quiet=True, unsafe=True)
        # A file has its template's mode, which in an installation for all users permits no writing.
        for path in made.rglob("*"):
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
        made.rename(target)
    return target


def _require_free(names: Names, target: Path) -> None:
    if target.exists():
        raise _refused("name", "a folder that does not exist", str(target), "Choose another name, or remove it.")
    module = names.module
    if module in sys.stdlib_module_names or keyword.iskeyword(module) or importlib.util.find_spec(module) is not None:
        raise _refused("name", "a module that nothing installed has", module, "Choose another name.")
    from forge_core.bench import plan

    for bench in plan.discover():
        if bench.name == names.suite:
            raise _refused("name", "a suite that no installed package has", f"{bench.name} of {bench.package}")
        for operator in bench.operators:
            if operator.name == names.operator:
                raise _refused(
                    "operator", "an operator that no installed package has", f"{operator.name} of {bench.package}"
                )


def _refused(argument: str, expected: str, got: str, hint: str = "") -> ArgumentError:
    return ArgumentError(op="forge-cute new", argument=argument, expected=expected, got=got, hint=hint)
