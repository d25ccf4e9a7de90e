"""`nox -s profile -- TOOL [PACKAGE] [--case WORDS] [--variant NAME] [--set NAMES] [-- COMMAND]`.

    TOOL       ncu        the GPU's counters of each launch, and what limits it
               nsys       the timeline
               sanitizer  memcheck, racecheck, initcheck and synccheck; each is a TOOL of its own too
               torch      PyTorch's profiler
    PACKAGE    week0, week0-transpose, forge_week0_transpose, ..., or planted: the five planted faults; without it, all
    --case     an operator, a shape, a dtype, a layout: "transpose 4096x4096 bfloat16"; without it, the suite smoke
    --variant  auto, a variant's name, or all: each on the first case that it can do
    --set      ncu: forge (default), launch, or a set of ncu's (basic, detailed, full); nsys: what to trace;
               sanitizer: tools joined by commas
    COMMAND    a command of your own, profiled from its start

`nox -s profile -- ncu --extract REPORT [--json] [--kernel NAME]` reads a report that is there already, and
`... -- ncu --extract compare A B` sets two side by side.

Results go to profiles/, named by time, tool and case.  Exit status: 0; 1 the sanitizer found something; 2 it cannot be
done here, and the message says what to do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import ncu
import ncu_extract
import nsys
import sanitizer
from common import CANNOT, ROOT, CannotProfile, Request, watch_tool, written

#: Calls of each work under torch's profiler.
TORCH_CALLS = 20


def torch_profiler(request: Request) -> int:
    """Runs the workload under PyTorch's profiler, which works inside the process.

    Raises:
        CannotProfile: a command of the user's own was given, or the workload failed.
    """
    if request.command:
        raise CannotProfile("torch's profiler works inside a process: name a package or a case instead of a command")
    stem = request.stem()
    log, trace, manifest = (stem.with_suffix(end) for end in (".txt", ".trace.json", ".manifest.json"))
    command = request.target(manifest, calls=TORCH_CALLS, more=["--torch-profiler", str(trace)])
    watch_tool("torch profiler", command, log, request.environment())
    sys.stdout.write(f"{written([log, trace])}\n")
    return 0


RUNNERS: dict[str, Callable[[Request], int]] = {
    "ncu": ncu.run,
    "nsys": nsys.run,
    "sanitizer": sanitizer.run,
    "torch": torch_profiler,
}


def parse(words: Sequence[str]) -> Request:
    """The request of a command line; what follows the first ``--`` is the user's own command."""
    own = list(words[words.index("--") + 1 :]) if "--" in words else []
    before = list(words[: words.index("--")]) if "--" in words else list(words)
    parser = argparse.ArgumentParser(
        prog="nox -s profile --", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tool", choices=[*RUNNERS, *sanitizer.TOOLS], metavar="TOOL")
    parser.add_argument("package", nargs="?", metavar="PACKAGE")
    parser.add_argument("--case")
    parser.add_argument("--variant", default="auto")
    parser.add_argument("--set", dest="sets")
    parser.add_argument("--kernel", help="only kernels whose name holds this")
    parser.add_argument("--calls", type=int, help="profiled calls of each case")
    parser.add_argument(
        "--clock-control", default="none", choices=["none", "base"], help="ncu: leave the clocks (none)"
    )
    parser.add_argument("--lines", action="store_true", help="compile with line information, for the source page")
    parser.add_argument("--out", type=Path, default=ROOT / "profiles", help="where results go")
    options = parser.parse_intermixed_args(before)
    if own and (options.package or options.case):
        parser.error("a command of your own stands instead of a package and a case")
    if options.tool in sanitizer.TOOLS:
        options.tool, options.sets = "sanitizer", options.tool
    return Request(**{**vars(options), "command": tuple(own), "out": options.out.resolve()})


def main(argv: Sequence[str] | None = None) -> int:
    """The program; see the module's docstring."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:2] == ["ncu", "--extract"]:
        return ncu_extract.main(words[2:])
    request = parse(words)
    try:
        return RUNNERS[request.tool](request)
    except CannotProfile as error:
        sys.stderr.write(f"\ncannot profile: {error}\n")
        return CANNOT


if __name__ == "__main__":
    sys.exit(main())
