"""What the first call in a new process costs, beside quack's and torch.compile's; needs a GPU.

    python tools/cache/first_call.py [--warm 3] [--out FILE]

Each contender runs in processes of its own: one with empty caches (cold), then some that find what it left (warm).  A
process imports torch and creates the CUDA context first; then three times are taken:

    library    importing what the call needs, for torch.compile the making of the compiled function
    call       from the call to its return: the kernel is launched
    second     the same call again, until its result is there
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONTENDERS = (
    "forge sum",
    "forge transpose",
    "forge softmax",
    "quack softmax",
    "torch.compile sum",
    "torch.compile transpose",
    "torch.compile softmax",
)
SHAPE = (1024, 1024)


def _measure(contender: str) -> dict[str, object]:
    clock = time.perf_counter
    began = clock()
    import torch

    imported = clock()
    x = torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    ready = clock()
    library, _, operator = contender.partition(" ")
    if contender == "forge sum":
        from forge_week1_reduce import reduce_sum as call
    elif contender == "forge transpose":
        from forge_week0_transpose import transpose as call
    elif contender == "forge softmax":
        from forge_week2_softmax import softmax as call
    elif library == "torch.compile":
        plain = {
            "sum": lambda x: x.sum(-1),
            "transpose": lambda x: x.t().contiguous(),
            "softmax": lambda x: x.softmax(-1),
        }
        call = torch.compile(plain[operator], dynamic=False)
    else:
        from quack.softmax import softmax as call
    called = clock()
    y = call(x)
    launched = clock()
    torch.cuda.synchronize()
    again = clock()
    call(x)
    torch.cuda.synchronize()
    ended = clock()
    exact = {"sum": x.double().sum(-1), "transpose": x.t().double(), "softmax": x.double().softmax(-1)}[operator]
    error = float((y.double() - exact).abs().max() / exact.abs().max())
    if error > 2**-7:
        raise SystemExit(f"{contender}: the result is wrong: relative error {error}")
    return {
        "import_torch_ms": round((imported - began) * 1e3, 1),
        "context_ms": round((ready - imported) * 1e3, 1),
        "library_ms": round((called - ready) * 1e3, 1),
        "call_ms": round((launched - called) * 1e3, 2),
        "second_ms": round((ended - again) * 1e3, 3),
        "imported_cutlass": "cutlass" in sys.modules,
    }


def _run(contender: str, state: str, environment: dict[str, str]) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", contender],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    if done.returncode != 0:
        return {"contender": contender, "state": state, "error": done.stderr.strip().splitlines()[-1:]}
    return {"contender": contender, "state": state, **json.loads(done.stdout.splitlines()[-1])}


def main() -> int:
    """Runs all contenders, prints a line for each process, and writes them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", help="only contenders whose name begins so")
    parser.add_argument("--warm", type=int, default=3, help="warm processes of each contender")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(_measure(arguments.measure)))
        return 0
    results = []
    for contender in CONTENDERS:
        if arguments.only and not contender.startswith(tuple(arguments.only)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            # quack's cache lies in the folder for temporary files.
            names = ("FORGE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")
            environment = {name: str(Path(folder, name.lower())) for name in names}
            Path(environment["TMPDIR"]).mkdir()
            for state in ["cold"] + ["warm"] * arguments.warm:
                results.append(_run(contender, state, environment))
                print(json.dumps(results[-1]), flush=True)
        warm = [
            r["call_ms"] for r in results if r["contender"] == contender and r["state"] == "warm" and "call_ms" in r
        ]
        if warm:
            print(f"{contender}: warm call, median of {len(warm)}: {statistics.median(warm)} ms", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if any("error" in result for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
