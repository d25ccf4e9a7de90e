"""Compiling many kernels at once.

``cute.compile`` is not thread-safe, so other processes compile (see ``worker``).  The store is how results come
back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_core import settings
from forge_core.cache.cached import builder_at
from forge_core.cache.key import tag
from forge_core.cache.store import Store
from forge_core.cache.worker import Order, how_it_ended

__all__ = ["Outcome", "Request", "compile_all", "default_jobs"]

# A worker takes about a gigabyte.
_MAX_JOBS = 16
#: A kernel that takes longer than this is given up, and its worker ended.
TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Request:
    """One kernel to be compiled.

    Attributes:
        builder: ``"module:qualname"`` of the ``@compile_cached`` builder.
        config: the configuration.
        arch: the architecture.
    """

    builder: str
    config: Any
    arch: str


@dataclass(frozen=True)
class Outcome:
    """What came of a request.

    Attributes:
        request: what was asked for.
        digest: the kernel's.
        status: ``"compiled"``, ``"present"`` or ``"failed"``.
        seconds: what compiling took, now or when it was done; 0 where it failed.
        bytes: the object's size.
        error: why it failed.
    """

    request: Request
    digest: str
    status: str
    seconds: float = 0.0
    bytes: int = 0
    error: str = ""


def default_jobs() -> int:
    """The processors that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, _MAX_JOBS))


def compile_all(
    requests: Iterable[Request],
    store: Store,
    *,
    jobs: int | None = None,
    on_done: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Makes sure that kernels are in a store; worker processes compile those that are not.

    Args:
        requests: what is wanted; the same kernel asked for twice is one.
        store: where they go.
        jobs: workers; by default one for each processor.
        on_done: called for each kernel as it is done.

    Returns:
        The outcomes in the order of the requests.  A kernel that fails does not keep the others from being compiled.

    Raises:
        CacheError: the store's folder is not safe.
        TypeError: a configuration that cannot be part of a key.
    """
    wanted: dict[str, Request] = {}
    outcomes: dict[str, Outcome] = {}

    def done(digest: str, answer: dict[str, Any]) -> None:
        outcomes[digest] = Outcome(wanted[digest], digest, **{"status": "failed", **answer})
        on_done(outcomes[digest])

    for request in requests:
        key = builder_at(request.builder).key(request.config, arch=request.arch)
        if key.digest not in wanted:
            wanted[key.digest] = request
            found = store.find(key)
            if found is not None:
                done(key.digest, {"status": "present", "seconds": found.seconds, "bytes": found.bytes})
    ended = ""
    # Where importing the modules ended the workers, they try again and import only what each kernel needs.
    for preload in (True, False):
        missing = {digest: request for digest, request in wanted.items() if digest not in outcomes}
        if not missing:
            break
        order = Order(
            requests=[(digest, each.builder, tag(each.config), each.arch) for digest, each in missing.items()],
            modules=sorted({each.builder.partition(":")[0] for each in missing.values() if preload}),
            jobs=jobs or default_jobs(),
            timeout_s=TIMEOUT_S,
            store=str(store.root.absolute()),
            max_bytes=store.max_bytes,
            debug=settings.debug_requested(),
        )
        ended = _run_workers(order, done)
    for digest in [each for each in wanted if each not in outcomes]:
        done(digest, {"error": f"the worker ended: {ended}"})
    return [outcomes[digest] for digest in wanted]


def _run_workers(order: Order, on_answer: Callable[[str, dict[str, Any]], None]) -> str:
    """Calls back with the digest and the answer of each request; returns how the workers' server ended.

    An exception, Ctrl-C say, ends the workers.
    """
    environment = {
        **os.environ,
        # No GPU is touched, whatever a library does when it is imported.
        "CUDA_VISIBLE_DEVICES": "",
        # OpenBLAS, which NumPy brings along, would start a thread for each core, and only one thread may fork.
        "OPENBLAS_NUM_THREADS": "1",
        # A worker finds what this process finds.
        "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
    }
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(json.dumps(order).encode())
        given.seek(0)
        with subprocess.Popen(
            [sys.executable, "-m", "forge_core.cache.worker"],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment,
            process_group=0,
        ) as server:
            try:
                for line in server.stdout or ():
                    if line.endswith(b"\n"):  # else the server was killed while it wrote
                        on_answer(*json.loads(line))
                server.wait()
            finally:
                if server.returncode != 0:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(server.pid, signal.SIGKILL)
        return how_it_ended(server.returncode, said)
