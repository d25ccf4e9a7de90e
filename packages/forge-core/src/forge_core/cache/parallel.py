"""Compiling many kernels at once.

``cute.compile`` is not thread-safe, so kernels are compiled by processes (see ``processes`` and ``forks``); a thread of
this process feeds each.  The store is how results come back:

    requests --+--> thread --> worker --> store
               `--> thread --> worker --> store
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from forge_core import settings
from forge_core.cache.cached import builder_at
from forge_core.cache.forks import start
from forge_core.cache.key import tag
from forge_core.cache.processes import Interpreter, Worker
from forge_core.cache.store import Store

__all__ = ["Outcome", "Request", "compile_all", "default_jobs"]

# A worker takes about a gigabyte.
_MAX_JOBS = 16


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
    """Makes sure that kernels are in a store, compiling those that are not by worker processes.

    Args:
        requests: what is wanted; the same kernel asked for twice is one.
        store: where they go.
        jobs: workers; by default one for each processor.
        on_done: called for each kernel as it is done, by one thread at a time.

    Returns:
        The outcomes in the order of the requests.  A kernel that fails does not keep the others from being compiled.

    Raises:
        CacheError: the store's folder is not safe.
        TypeError: a configuration that cannot be part of a key.
    """
    digests: dict[str, Request] = {}
    modules: dict[str, None] = {}
    outcomes: dict[str, Outcome] = {}
    waiting: queue.SimpleQueue[tuple[str, Request]] = queue.SimpleQueue()
    for request in requests:
        key = builder_at(request.builder).key(request.config, arch=request.arch)
        if key.digest in digests:
            continue
        digests[key.digest] = request
        found = store.find(key)
        if found is None:
            waiting.put((key.digest, request))
            modules[request.builder.partition(":")[0]] = None
        else:
            outcomes[key.digest] = Outcome(request, key.digest, "present", found.seconds, found.bytes)
            on_done(outcomes[key.digest])
    reporting = threading.Lock()

    def done(outcome: Outcome) -> None:
        with reporting:
            outcomes[outcome.digest] = outcome
            on_done(outcome)

    with start(min(jobs or default_jobs(), waiting.qsize()), list(modules)) as started:
        threads = [
            threading.Thread(target=_feed, args=(waiting, store, done, worker), name=f"forge-{worker}", daemon=True)
            for worker in started
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C, say
            _empty(waiting)
            raise
    return [outcomes[digest] for digest in digests]


def _empty(waiting: queue.SimpleQueue[tuple[str, Request]]) -> None:
    """Leaves nothing to be begun."""
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.get_nowait()


def _feed(
    waiting: queue.SimpleQueue[tuple[str, Request]],
    store: Store,
    done: Callable[[Outcome], None],
    first: Worker,
) -> None:
    """Gives kernels to one worker until there are none; a worker that ends is replaced."""
    worker: Worker | None = first
    try:
        while True:
            try:
                digest, request = waiting.get_nowait()
            except queue.Empty:
                return
            worker = worker or Interpreter()
            answer = worker.ask(_told(request, store))
            if answer is None:
                error = worker.end()
                worker = None
                done(Outcome(request, digest, "failed", error=f"the worker ended: {error}"))
            elif "error" in answer:
                done(Outcome(request, digest, "failed", error=answer["error"]))
            elif answer["digest"] != digest:
                done(Outcome(request, digest, "failed", error="its sources or its environment changed meanwhile"))
            else:
                status = "compiled" if answer["compiled"] else "present"
                done(Outcome(request, digest, status, answer["seconds"], answer["bytes"]))
    finally:
        if worker is not None:
            worker.end()


def _told(request: Request, store: Store) -> dict[str, Any]:
    """A request as ``worker`` reads it."""
    return {
        "builder": request.builder,
        "config": tag(request.config),
        "arch": request.arch,
        "debug": settings.debug_requested(),
        "store": str(store.root.absolute()),
        "max_bytes": store.max_bytes,
    }
