"""The plan of a remote run: machine, cost, image, files, command and what comes back, computed without Modal."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from click import UsageError

ROOT = Path(__file__).resolve().parents[2]


class Gpu(NamedTuple):
    """A GPU that can be rented."""

    asked: str  # of Modal; `!` forbids that it gives a larger one instead
    names: tuple[str, ...]  # what torch.cuda.get_device_name() may report
    price: float  # USD a second


#: Modal's list prices, about.  They change: compare them with PRICES_AT, correct them, and write the month here.
PRICES_AS_OF, PRICES_AT = "2026-06", "https://modal.com/pricing"
GPUS = {
    "B200": Gpu("B200", ("NVIDIA B200",), 0.001736),
    "H200": Gpu("H200", ("NVIDIA H200",), 0.001261),
    "H100": Gpu("H100!", ("NVIDIA H100 80GB HBM3",), 0.001097),
    "A100-80GB": Gpu("A100-80GB", ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"), 0.000694),
    "L40S": Gpu("L40S", ("NVIDIA L40S",), 0.000542),
    "RTX-PRO-6000": Gpu("RTX-PRO-6000", ("NVIDIA RTX PRO 6000 Blackwell Server Edition",), 0.000842),
}
CORE_PRICE, GIB_PRICE = 0.00003942, 0.00000672  # USD a second of a physical core and of a GiB, in a sandbox
CORES, GIB = 8, 64  # requested, and the limit too: a sandbox pays for what it uses beyond its request

RESERVE = 300  # seconds beside the command's limit: to start, to check the GPU, to bring the last files back
GRACE = 60  # seconds that a command has to write down what it has when its limit is reached

# Nsight Compute and compute-sanitizer are in the devel images; the version is that of the pinned torch's CUDA.
BASE, PYTHON = "nvidia/cuda:13.0.3-devel-ubuntu24.04", "3.12"
VENV = "/opt/forge"  # of its own, so that `pip check` sees nothing of the service's
SOURCES, OUT, CACHE, VOLUME = "/forge", "/out", "/cache", "forge-compile-cache"
VARIABLES = {
    "FORGE_CACHE_DIR": f"{CACHE}/forge",
    "PATH": f"{VENV}/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
UNFINISHED = "results/proofs"  # an unfinished proof: the only files that travel without being tracked

KINDS = ("bench", "prove", "profile")
PROFILERS = ("ncu", "sanitizer", "memcheck", "racecheck", "initcheck", "synccheck", "torch")
#: Commands of the bench that need no GPU, or whose result is not a record.
BENCH_HERE = ("accuracy", "compare", "list", "report", "show", "stamp", "tune")
#: Options that name a place, which would be one on the machine that is gone afterwards.
PLACES = {"bench": ("--json",), "prove": ("--root", "--records", "--out"), "profile": ("--extract",)}


class Step(NamedTuple):
    """A step of the image: FROM an image, COPY these files, or RUN a line."""

    verb: str
    what: str
    files: tuple[str, ...] = ()


class Back(NamedTuple):
    """A file or folder that comes back; of a mirrored one, what is gone there is removed here."""

    remote: str
    local: Path
    mirrored: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything that a remote run does; ``session`` is the same in this repository's sessions."""

    session: str
    gpu: str
    minutes: int
    image: tuple[Step, ...]
    files: tuple[str, ...]
    untracked: tuple[str, ...]
    command: tuple[str, ...]
    back: tuple[Back, ...]
    after: str

    @property
    def seconds(self) -> int:
        """The longest that the machine lives."""
        return 60 * self.minutes + RESERVE

    @property
    def price(self) -> float:
        """USD a second, of GPU, cores and memory."""
        return GPUS[self.gpu].price + CORES * CORE_PRICE + GIB * GIB_PRICE

    @property
    def cost(self) -> float:
        """The most that the machine costs, in USD."""
        return self.seconds * self.price

    def describe(self) -> str:
        """The plan as it is printed, the cost first."""
        gpu = GPUS[self.gpu]
        size = sum((ROOT / file).stat().st_size for file in self.files) / 1e6
        names = " or ".join(map(repr, gpu.names))
        hourly = f"${3600 * self.price:.2f} an hour (GPU ${3600 * gpu.price:.2f}, the rest {CORES} cores, {GIB} GiB)"
        rows = [
            ("cost", f"at most about ${self.cost:.2f}: {self.seconds // 60} minutes at {hourly}"),
            ("", f"list prices as of {PRICES_AS_OF}, to be checked at {PRICES_AT}; building the image is not in it"),
            ("run", self.session),
            ("GPU", f"{self.gpu}, asked for as {gpu.asked!r}; refused unless torch reports {names}"),
            ("limit", f"{self.minutes} minutes, then SIGINT; the machine lives {self.seconds} s at most"),
            *(("image", f"{step.verb} {step.what}") for step in self.image),
            ("files", f"{len(self.files)} ({size:.1f} MB)"),
            *([("", f"untracked, not sent: {', '.join(self.untracked)}")] if self.untracked else []),
            ("volume", f"{VOLUME} at {CACHE}"),
            *(("variable", f"{name}={value}") for name, value in VARIABLES.items()),
            ("command", shlex.join(self.command)),
            *(("back", f"{back.remote} -> {back.local}") for back in self.back),
        ]
        return "\n".join(f"{name:9} {text}" for name, text in rows)


def make_plan(
    kind: str,
    words: Sequence[str],
    own: Sequence[str] = (),
    *,
    gpu: str,
    out: Path | None = None,
    minutes: int = 60,
    extra: Sequence[str] = (),
) -> Plan:
    """The plan of a run, or a UsageError where something of it is not served: nothing was built and nothing is paid.

    ``words`` follow ``nox -s KIND --``, a profile's ``own`` command stands behind another ``--``; ``out`` is where the
    record goes, None for the session's own place; ``extra`` are further distributions, such as a benchmark's peers.
    """
    if gpu not in GPUS:
        raise UsageError(f"--gpu: expected one of {', '.join(GPUS)}, got {gpu!r}")
    for place in PLACES[kind]:
        if any(word.split("=")[0] == place for word in words) or (place == "--out" and out is not None):
            raise UsageError(f"{place}: {kind} takes none here, since it names a place on the other machine; drop it")
    files = files_of("--cached")
    after = (
        f"Write the commit into the record, from a clean checkout of the same sources: forge-cute {kind} stamp RECORD"
    )
    if kind == "bench":
        python, back = _bench(words, out)
    elif kind == "prove":
        python = ["-m", "forge_core.cli", "prove", "run", *words]
        folders = {"docs/records": False, UNFINISHED: True}
        back = tuple(Back(f"{SOURCES}/{name}", ROOT / name, mirrored) for name, mirrored in folders.items())
        files += tuple(str(p.relative_to(ROOT)) for p in sorted((ROOT / UNFINISHED).rglob("*")) if p.is_file())
    else:
        if not words or words[0] not in PROFILERS:
            got = repr(words[0]) if words else "nothing"
            raise UsageError(f"profile: expected one of {', '.join(PROFILERS)}, got {got}; the image has no other")
        python, after = ["tools/profiling/run.py", *words, "--out", OUT], ""
        back = (Back(OUT, _folder(out or ROOT / "profiles")),)
    passed = ["--", *own] if own else []
    limit = ("timeout", "--signal=INT", f"--kill-after={GRACE}", str(60 * minutes))
    return Plan(
        session=shlex.join(["nox", "-s", kind, "--", *words, *passed]),
        gpu=gpu,
        minutes=minutes,
        image=image_steps(files, extra),
        files=files,
        untracked=files_of("--others", "--exclude-standard"),
        command=(*limit, f"{VENV}/bin/python", *python, *passed),
        back=back,
        after=after,
    )


def _bench(words: Sequence[str], out: Path | None) -> tuple[list[str], tuple[Back, ...]]:
    if not words or words[0].startswith("-"):
        raise UsageError("bench: expected a suite or an operator first, such as: bench week2 --gpu H200")
    if words[0] in BENCH_HERE:
        raise UsageError(f"bench: expected a suite or an operator, got {words[0]!r}; nox -s bench -- {words[0]} has it")
    command = ["-m", "forge_core.cli", "bench", *words]
    if out is None or not out.name.endswith((".json", ".json.gz", ".json.xz")):
        return [*command, "--out", OUT], (Back(OUT, _folder(out or ROOT / "results")),)
    if out.exists():
        raise UsageError(f"--out: {out} exists; name another file, or remove it")
    _folder(out.parent)
    return [*command, "--json", f"{OUT}/{out.name}"], (Back(f"{OUT}/{out.name}", out),)


def _folder(folder: Path) -> Path:
    """The folder, which is made when something comes back, so that must be possible."""
    found = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not found.is_dir():
        raise UsageError(f"--out: expected a folder, and {found} is a file; name another place")
    return folder


def files_of(*which: str) -> tuple[str, ...]:
    """The files of the working tree that git tracks (``--cached``), or does not (``--others``)."""
    command = ["git", "ls-files", "-z", *which]
    try:
        listed = subprocess.check_output(command, cwd=ROOT, stderr=subprocess.PIPE)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"{ROOT}: expected a git checkout, whose tracked files travel: {error}") from error
    return tuple(name for name in listed.decode().split("\0") if name and (ROOT / name).is_file())


def image_steps(files: Sequence[str], extra: Sequence[str] = ()) -> tuple[Step, ...]:
    """The steps of the image, those that change least first.

    torch is the last that is installed from an index, so that nothing else decides on its build; the packages follow
    with --no-deps, and `pip check` holds all of it together.
    """
    wanted, editable = list(extra), []
    wanted += tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text())["project"]
        # The pinned torch is built with CUDA 13, so the CuTe DSL needs its libraries of that version.
        wanted += [*project["dependencies"], *project["optional-dependencies"]["cu13"]]
        editable += ["-e", str(file.parent.relative_to(ROOT))]
    # What is for Linux only is for this image, so the markers go.
    others = sorted({one.split(";")[0].strip() for one in wanted if not re.match(r"(forge-|torch\b)", one)})
    pip = f"{VENV}/bin/python -m pip"
    return (
        Step("FROM", BASE),
        Step("RUN", f"python -m venv {VENV} && mkdir -p {OUT}"),
        Step("COPY", f"constraints.txt {SOURCES}/", ("constraints.txt",)),
        Step("RUN", f"{pip} install -c {SOURCES}/constraints.txt {shlex.join(others)}"),
        Step("RUN", f"{pip} install -c {SOURCES}/constraints.txt torch"),
        Step("COPY", f"{len(files)} files {SOURCES}/", tuple(files)),
        Step("RUN", f"cd {SOURCES} && {pip} install --no-deps --no-build-isolation {shlex.join(editable)}"),
        Step("RUN", f"{pip} check"),
    )
