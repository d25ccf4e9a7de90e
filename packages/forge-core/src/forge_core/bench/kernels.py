"""The kernels that the benchmark suites run, for compiling them before anybody waits for one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from forge_core import settings
from forge_core.bench import plan as planning
from forge_core.bench.plan import Run
from forge_core.bench.schema import load_suites
from forge_core.cache.cached import builder_at, find_entries
from forge_core.cache.key import canonical, tag
from forge_core.cache.parallel import Outcome, Request, compile_all
from forge_core.cache.store import Store, user_store
from forge_core.errors import ArgumentError, UnsupportedError
from forge_core.progress import progress

#: Fewer kernels than this are compiled sooner by the process that wants them.
WORTH_IT = 4


def requests(names: Sequence[str], archs: Iterable[str]) -> list[Request]:
    """The kernels of some suites or operators, by default of all suites, on some architectures, each once."""
    benches = planning.discover()
    names = names or sorted({name for bench in benches for name in load_suites(bench)})
    return kernels_of([planning.plan(benches, name, planning.Selection()) for name in names], archs)


def ahead(wanted: Sequence[Request]) -> list[Outcome]:
    """Compiles what neither the user's cache nor a bundle has, in parallel, if these are switched on.

    A kernel that cannot be compiled is left to its launch, which raises the error.
    """
    store = user_store()
    if store is None or not settings.current().jit:
        return []
    missing = [r for r in wanted if not any(find_entries(builder_at(r.builder).key(r.config, arch=r.arch), store))]
    return compile_shown(missing, store) if len(missing) >= WORTH_IT else []


def compile_shown(wanted: Sequence[Request], store: Store, *, jobs: int | None = None) -> list[Outcome]:
    """``compile_all`` with its progress shown."""
    with progress(len(wanted), "compiling kernels", each=False) as shown:

        def done(outcome: Outcome) -> None:
            shown(f"{outcome.request.builder.partition(':')[0].rpartition('.')[2]} {outcome.request.arch}")

        return compile_all(wanted, store, jobs=jobs, on_done=done)


def kernels_of(runs: Iterable[Run], archs: Iterable[str]) -> list[Request]:
    """The kernels of some runs on some architectures, each once."""
    found: dict[tuple[str, str, str], Request] = {}
    contenders = [(planned, variant) for run in runs for planned in run.cases for variant in planned.variants]
    for arch, (planned, variant) in itertools.product(archs, contenders):
        try:
            with settings.use_settings(backend=None):
                told = planned.operator.planned(planned.case, variant, arch=arch)
        except (ArgumentError, UnsupportedError):
            if variant not in planned.lenient:
                raise
            continue
        if told.builder is not None:
            # Not by equality, to which 1 and True are the same.
            found[told.builder, arch, canonical(tag(told.config))] = Request(told.builder, told.config, arch)
    return list(found.values())
