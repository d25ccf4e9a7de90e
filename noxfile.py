"""Every check and every job, each by one name: `nox --list` shows them.

The torch stack is large, so one environment serves every session: `env` makes it once in .nox/env, with the packages
installed from their folders, and installs again only when a project file or constraints.txt has changed.  On a machine
that is prepared already, `nox --no-venv -s ...` installs nothing and uses the Python that runs nox.

Nothing here lists the packages: they are what has a packages/*/pyproject.toml.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"
# What `nox -s build` made is looked at by these tests alone; see testpaths in pyproject.toml.
RELEASE_TESTS = "tests/release"
# Folders of programs that are started by path; each is a place of its own to import from.
TOOLS = ("tools/bench", "tools/profiling", "tools/remote", "tools/site")
# The templates of `nox -s new`, each a package under sample names.
TEMPLATES = "packages/forge-core/src/forge_core/scaffold/template"
# The benchmarks' command, and those of its exit statuses that mean more than "failed" (forge_core.cli).
BENCH = ("-m", "forge_core.cli", "bench")
REGRESSION, BAD_USAGE = 2, 3
# What an interrupted command may take to write down what it has; nox's own patience is a third of a second.
INTERRUPT_SECONDS = 120.0


@dataclass(frozen=True)
class Package:
    """One folder under packages/, by the three names it is known by."""

    path: Path  # from the root
    distribution: str

    @property
    def names(self) -> tuple[str, ...]:
        """What may be written after `--`: the folder, the distribution, or the name to import."""
        modules = (p.name for p in (ROOT / self.path / "src").iterdir() if p.is_dir())
        return self.path.name, self.distribution, *modules


def packages() -> list[Package]:
    """All packages, the core first, as their folders sort."""
    projects = sorted((ROOT / "packages").glob("*/pyproject.toml"))
    return [Package(p.parent.relative_to(ROOT), nox.project.load_toml(p)["project"]["name"]) for p in projects]


# ---------------------------------------------------------------------------------------------- the one environment


@nox.session(reuse_venv=True, venv_backend="virtualenv")
def env(session: nox.Session) -> None:
    """Makes the environment that the other sessions share; not needed by hand."""
    if session.venv_backend == "none":
        return
    stamp = Path(session.virtualenv.location) / "forge-installed.txt"
    wanted = _installed_from()
    if stamp.exists() and stamp.read_text() == wanted:
        session.log("the environment is up to date")
        return
    stamp.unlink(missing_ok=True)
    _install(session, "torch", constraints=("-c", str(CONSTRAINTS)))
    stamp.write_text(wanted)


def _install(session: nox.Session, *wanted: str, constraints: tuple[str, ...] = ()) -> None:
    """Installs what is wanted, the tools, and the packages from their folders."""
    session.install(*constraints, *wanted, *_tools())
    # A torch built with CUDA 13 wants the CuTe DSL's libraries of CUDA 13, which every package forwards as an extra.
    cuda = session.run("python", "-c", "import torch; print(torch.version.cuda or '')", silent=True, log=False)
    extra = "[cu13]" if str(cuda).strip().rpartition("\n")[2].startswith("13.") else ""
    editables = [part for package in packages() for part in ("-e", f"./{package.path}{extra}")]
    session.install(*constraints, *wanted, "--no-build-isolation", *editables)


def _tools() -> tuple[str, ...]:
    """What is installed beside the packages."""
    return nox.project.dependency_groups(nox.project.load_toml(ROOT / "pyproject.toml"), "dev")


def _installed_from() -> str:
    """A hash of all that decides what is installed: Python, tools, pins, project files, and the packages' versions."""
    files = [CONSTRAINTS, *sorted((ROOT / "packages").glob("*/pyproject.toml"))]
    parts = [sys.version, str(ROOT), *_tools(), *(file.read_text() for file in files)]
    for module in sorted((ROOT / "packages").glob("*/src/*/__init__.py")):
        parts += re.findall(r"^__version__ = .*$", module.read_text(), re.MULTILINE)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def python(session: nox.Session, *args: str, **variables: str) -> None:
    """Runs the shared environment's Python; with --no-venv, the Python that runs nox."""
    executable = sys.executable
    if not _no_venv(session):
        folder = Path(session.env_dir).parent / "env" / ("Scripts" if os.name == "nt" else "bin")
        executable = str(folder / "python")
        variables["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", "")])
    try:
        session.run(executable, *args, env=variables, external=True, interrupt_timeout=INTERRUPT_SECONDS)
    except nox.command.CommandFailed as error:
        # nox itself knows one status of failure; these two say what failed, to a script as to a person.
        status = getattr(error, "return_code", None)  # an older nox does not tell
        if args[:3] == BENCH and status in (REGRESSION, BAD_USAGE):
            raise SystemExit(status) from error
        raise


def _no_venv(session: nox.Session) -> bool:
    # Every session below is declared without an environment of its own, so only nox's own options tell the cases apart.
    return session._runner.global_config.force_venv_backend == "none"


# ----------------------------------------------------------------------------------------------------------- checks


@nox.session(venv_backend="none", requires=["env"])
def tests(session: nox.Session) -> None:
    """Tests of all packages and of the repository, or of the packages named after `--`; the rest goes to pytest."""
    chosen, rest = _split(session, session.posargs)
    if any(Path(word.split("::")[0]).exists() for word in rest if not word.startswith("-")):
        folders = []  # files were named, and pytest finds them itself
    else:
        folders = [f"{package.path}/tests" for package in chosen or packages()] + ([] if chosen else ["tests"])
    _browser(session)
    workers, variables = _workers(session, rest)
    python(session, "-m", "pytest", "--forge-proofs", *workers, *folders, *rest, **variables)


def _browser(session: nox.Session) -> None:
    """Installs Chromium, which the tests of the report look at its page with, where continuous integration lacks it."""
    if any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome", "chrome")):
        return
    if "CI" not in os.environ:
        return  # nothing is installed on anyone's system: those tests are skipped, and say so
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        session.warn("no Chromium on PATH: the tests of the report will fail; install it with your system's packages")
        return
    for words in (("update",), ("install", "-y", "--no-install-recommends", "chromium")):
        # Any status will do: where it fails, the tests that need the browser say what to do.
        session.run(
            *("apt-get", "-q", *words),
            external=True,
            silent=True,
            success_codes=range(256),
            env={"DEBIAN_FRONTEND": "noninteractive"},
        )


def _split(session: nox.Session, words: list[str]) -> tuple[list[Package], list[str]]:
    """The packages named by the leading words, and what is left for pytest."""
    known = {name: package for package in packages() for name in package.names}
    chosen: list[Package] = []
    for index, word in enumerate(words):
        if word in known:
            chosen.append(known[word])
        elif word.startswith("-") or Path(word.split("::")[0]).exists():
            return chosen, words[index:]
        else:
            names = ", ".join(package.distribution for package in packages())
            session.error(f"{word!r} is neither a package nor a path; the packages are {names}")
    return chosen, []


def _workers(session: nox.Session, rest: list[str]) -> tuple[list[str], dict[str, str]]:
    """How many processes the tests run in, and the threads that each may use."""
    asked = any(word.startswith(("-n", "--numprocesses", "--pdb", "-s", "--dist")) for word in rest)
    # A GPU is one resource: processes that share it would disturb each other's timings and memory.
    has_gpu = Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None
    if asked or has_gpu or (_no_venv(session) and importlib.util.find_spec("xdist") is None):
        return [], {}
    cores = os.cpu_count() or 1
    processes = max(1, min(cores, 8))
    # A worker that a signal ended is not replaced: the run would wait for that worker's files for ever.
    workers = ["-n", str(processes), "--dist", "loadfile", "--max-worker-restart", "0"]
    return workers, {"OMP_NUM_THREADS": str(max(1, cores // processes))}


@nox.session(reuse_venv=True, venv_backend="virtualenv")
@nox.parametrize("versions", ["lowest", "newest"], ids=["lowest", "newest"])
def compat(session: nox.Session, versions: str) -> None:
    """The packages' tests on the lowest and the newest torch and CuTe DSL that are declared: `nox -s "compat(lowest)"`.

    Each has an environment of its own, of several gigabytes.  What follows `--` goes to pytest.
    """
    core = nox.project.load_toml(ROOT / "packages" / "forge-core" / "pyproject.toml")["project"]["dependencies"]
    declared = [re.fullmatch(r"(torch|nvidia-cutlass-dsl)>=([0-9.]+)([^;]*).*", words) for words in core]
    bounds = [found.groups() for found in declared if found is not None]
    if versions == "lowest":
        _install(session, *(f"{name}=={least}.*" for name, least, _ in bounds))
    else:
        _install(session, *(f"{name}>={least}{others}" for name, least, others in bounds), constraints=("--upgrade",))
    session.run("python", "-m", "forge_core.cli", "doctor")
    folders = [f"{package.path}/tests" for package in packages()]
    workers, variables = _workers(session, list(session.posargs))
    session.run("python", "-m", "pytest", *workers, *(session.posargs or folders), env=variables)


@nox.session(venv_backend="none", requires=["env"])
def lint(session: nox.Session) -> None:
    """Style and formatting, by ruff, of all files or of the packages named; `-- --fix` repairs what can be."""
    chosen, rest = _split(session, session.posargs)
    folders = [str(package.path) for package in chosen]
    python(session, "-m", "ruff", "check", *folders, *rest)
    python(session, "-m", "ruff", "format", *([] if "--fix" in rest else ["--check"]), *folders)


@nox.session(venv_backend="none", requires=["env"])
def types(session: nox.Session) -> None:
    """Types, by mypy in its strict mode: of packages, tools and this file, or of the packages named."""
    chosen, rest = _split(session, session.posargs)
    sources = [*(f"{package.path}/src" for package in packages()), *TOOLS]
    # As files, since mypy is told to pass their folders over: they are no modules of the core.
    files = [str(file.relative_to(ROOT)) for file in sorted((ROOT / TEMPLATES).rglob("src/**/*.py"))]
    checked = [f"{package.path}/src" for package in chosen] or [*sources, *files, "noxfile.py"]
    templates = [f"{TEMPLATES}/rows/src", f"{TEMPLATES}/kernel/src"]
    python(session, "-m", "mypy", *checked, *rest, MYPYPATH=os.pathsep.join([*sources, *templates]))


# ------------------------------------------------------------------------------------------------------------- jobs


@nox.session(venv_backend="none", requires=["env"])
def bench(session: nox.Session) -> None:
    """Benchmarks: `nox -s bench -- smoke`, or what `forge-cute bench --help` lists."""
    python(session, *BENCH, *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def prove(session: nox.Session) -> None:
    """Proofs of the kernels on this GPU: `nox -s prove`, `-- week1`, `-- --all`; needs compute-sanitizer."""
    python(session, "-m", "forge_core.cli", "prove", "run", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def proofs(session: nox.Session) -> None:
    """Whether what was proven of each kernel is what lies here; needs no GPU."""
    python(session, "-m", "forge_core.cli", "prove", "check", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def profile(session: nox.Session) -> None:
    """Profilers: `nox -s profile -- ncu week0`, nsys, sanitizer, torch; `-- --help` lists what they take."""
    python(session, "tools/profiling/run.py", *session.posargs)


@nox.session(reuse_venv=True, venv_backend="virtualenv")
def remote(session: nox.Session) -> None:
    """Bench, proofs or a profile on a rented GPU: `nox -s remote -- bench week2 --gpu H200`; `--dry-run`, `--help`."""
    executable = sys.executable
    if not _no_venv(session):
        # Modal's client alone: the torch stack is installed in the image, not here.
        session.install("-c", str(CONSTRAINTS), "modal")
        executable = "python"
    try:
        words = (executable, "tools/remote/remote.py", *session.posargs)
        session.run(*words, external=True, interrupt_timeout=INTERRUPT_SECONDS)
    except nox.command.CommandFailed as error:
        # The status is that of the command that ran there, or says why none did.
        raise SystemExit(getattr(error, "return_code", None) or 1) from error


@nox.session(venv_backend="none", requires=["env"])
def tune(session: nox.Session) -> None:
    """Thresholds of a package's select_config, measured on this GPU: `nox -s tune -- week0 --device cuda:0`."""
    python(session, *BENCH, "tune", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def docs(session: nox.Session) -> None:
    """The site, to be opened from the file system: pages, operators, API and report; every link inside is checked."""
    python(session, "tools/site/build.py", *(session.posargs or ["results/docs"]))


@nox.session(venv_backend="none", requires=["env"])
def new(session: nox.Session) -> None:
    """A package with a tested operator, from a template: `nox -s new -- week4-glu --operator swiglu --kind rows`."""
    python(session, "-m", "forge_core.cli", "new", "--into", "packages", "--prefix", "forge-", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def build(session: nox.Session) -> None:
    """Wheels and sdists of all packages in dist/, then a clean environment installs and runs what is there.

    A package that is named is checked on its own: `-- week4-glu`.
    """
    chosen, rest = _split(session, session.posargs)
    shutil.rmtree(DIST, ignore_errors=True)
    if _no_venv(session):
        # hatch would make an environment of its own; hatchling, which it runs in there, is enough.
        for package in packages():
            with session.chdir(package.path):
                python(session, "-m", "hatchling", "build", "--directory", str(DIST))
    else:
        python(session, "-m", "hatch", "build", "--all", str(DIST), HATCH_DATA_DIR=str(ROOT / ".nox" / "hatch"))
    named = ["-k", " or ".join(package.path.name for package in chosen)] if chosen else []
    python(session, "-m", "pytest", RELEASE_TESTS, *named, *rest)


@nox.session(venv_backend="none", requires=["env"])
def doctor(session: nox.Session) -> None:
    """What this machine has, what is wrong with it, and the command that repairs each fault; `-- --json`."""
    python(session, "-m", "forge_core.cli", "doctor", *session.posargs)
