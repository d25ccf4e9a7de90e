"""Makes a record of a profile that can be kept: `record.py PROFILE.csv NAME [--into FOLDER]`.

    NAME.csv             the exported CSV without the columns that nothing here reads
    NAME.manifest.json   what was run, with the launches that were worked out on the host
    NAME.kernels.json    the names of each work's kernels, compiled here, and a digest of their PTX

The tests compare what is read out of the machine code with what ncu said, for every kernel whose PTX is the recorded
one, so the record has to be made from the sources that were profiled.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge_core import dtypes
from forge_core.bench.declare import Case
from forge_core.bench.plan import discover
from forge_core.bench.schema import parse_shape
from forge_core.commands.find import explain_case
from forge_core.profiling.compiled import Artefacts, compile_to_look_at
from forge_core.profiling.cubin import read_cubin

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import ROOT
from ncu_extract import prune

FOLDER = ROOT / "docs" / "records" / "h200" / "profiling"


def compile_work(case: dict[str, Any], *, arch: str) -> Artefacts:
    """Compiles what a work of a manifest ran."""
    if "fault" in case:
        from kernels.planted import PlantedConfig

        config = PlantedConfig(case["fault"], case["sound"])
        return compile_to_look_at("kernels.planted:build", config, (case["count"], case["slab"]), arch=arch)
    operators = {operator.name: operator for bench in discover() for operator in bench.operators}
    problem = Case(case["operator"], parse_shape(case["shape"]), dtypes.parse(case["dtype"]), case["layout"])
    explanation = explain_case(operators[case["operator"]], problem, case["variant"], arch=arch)
    return compile_to_look_at(str(explanation.builder), explanation.config, explanation.integers, arch=arch)


def kernels_of(manifest: dict[str, Any], *, arch: str) -> list[dict[str, Any]]:
    """For each work, its kernels' names and a digest of the PTX."""
    found = []
    for work in manifest["works"]:
        artefacts = compile_work(work["case"], arch=arch)
        found.append(
            {
                "work": work["name"],
                "kernels": [kernel.name for kernel in read_cubin(artefacts.cubin)],
                "ptx_sha256": hashlib.sha256(artefacts.ptx.encode()).hexdigest(),
            }
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, help="the CSV that `nox -s profile -- ncu` left, beside its manifest")
    parser.add_argument("name", help="the record's name, for example week0")
    parser.add_argument("--arch", default="sm_90a", help="the architecture that was profiled")
    parser.add_argument("--into", type=Path, default=FOLDER, help="the folder")
    options = parser.parse_args(argv)
    options.into.mkdir(parents=True, exist_ok=True)
    manifest_text = options.profile.with_suffix(".manifest.json").read_text(encoding="utf-8")
    kernels = kernels_of(json.loads(manifest_text), arch=options.arch)
    files = {
        ".csv": prune(options.profile),
        ".manifest.json": manifest_text,
        ".kernels.json": json.dumps(kernels, indent=1) + "\n",
    }
    for ending, text in files.items():
        (options.into / f"{options.name}{ending}").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
