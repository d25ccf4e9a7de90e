"""Compiles the peers of suites and sweeps in several processes, so that measuring them does not wait for it.

    python tools/bench/compile_ahead.py week0 week1 --jobs 14
    python tools/bench/compile_ahead.py softmax:60 sum_rows:40 --seed 7 --most-bytes 268435456

``softmax:60`` are the cases of ``forge-cute bench sweep softmax --cases 60`` with the same options.  Each case's peers
of torch.compile are called once, and so is ours; inductor keeps what it compiled, and measuring loads that.  What
autotuning chose while other processes shared the GPU is removed: each measurement tunes by itself.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from forge_core.bench import plan, sweep
from forge_core.bench.plan import PlannedCase
from forge_core.bench.schema import AUTO, OURS
from forge_core.progress import progress

PEERS = ("compile", "autotune")


def cases_of(names: Sequence[str], seed: int, most_bytes: int) -> list[PlannedCase]:
    """The cases of suites, and of sweeps where a name has their number."""
    benches, found = plan.discover(), list[PlannedCase]()
    operators = {name: bench for bench in benches for name in bench.by_name}
    for name in names:
        operator, _, count = name.partition(":")
        if not count:
            found += plan.plan(benches, name, plan.Selection()).cases
            continue
        bench = operators[operator]
        drawn = sweep.draw(bench.by_name[operator], seed, int(count), ("float32", "bfloat16"), most_bytes)
        found += sweep.plan(bench, bench.by_name[operator], drawn).cases
    return found


def compile_share(names: Sequence[str], seed: int, most_bytes: int, share: int, shares: int) -> list[str]:
    """Compiles every ``shares``-th case; returns what went wrong, by case."""
    device, wrong = torch.device("cuda"), list[str]()
    for planned in cases_of(names, seed, most_bytes)[share::shares]:
        operator, case = planned.operator, planned.case
        inputs = operator.random_inputs(case, device, seed=seed, what="compiled ahead")
        compiled = [peer.name for peer in planned.peers if peer.name in PEERS and not peer.missing(device)]
        for name in (OURS, *compiled):
            peer = operator.peer(name)
            try:
                (operator.call(AUTO) if peer is None else peer.make(case))(*inputs)
            except Exception as error:  # noqa: BLE001 - reported, and once more by the measurement
                wrong.append(f"{case.name}: {name}: {type(error).__name__}: {error}")
        del inputs
        torch.cuda.empty_cache()
    return wrong


@click.command(help=__doc__)
@click.argument("names", nargs=-1, required=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--most-bytes", type=int, default=2**30, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=max(1, (os.cpu_count() or 2) - 1), show_default=True)
def main(names: tuple[str, ...], seed: int, most_bytes: int, jobs: int) -> None:
    """Compiles everything; prints what could not be compiled, and ends with status 1 then."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # the processes are as many as the cores
    tuned, wrong = Path(cache_dir()), list[str]()
    known = set(tuned.rglob("*.best_config"))
    try:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool, progress(jobs) as done:
            for each in [pool.submit(compile_share, names, seed, most_bytes, share, jobs) for share in range(jobs)]:
                wrong += each.result()
                done("a share of the cases")
    finally:
        for path in set(tuned.rglob("*.best_config")) - known:
            path.unlink()
        for problem in wrong:
            click.echo(problem, err=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
