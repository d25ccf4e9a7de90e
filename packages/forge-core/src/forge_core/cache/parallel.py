"""Compiling many kernels at once.

``cute.compile`` is not thread-safe, and a process that has initialised CUDA must not fork, so each worker is a fresh
interpreter (see ``worker``) that sees no GPU; a thread of this process feeds it.  The store is how results come back:

    requests --+--> thread --stdin--> worker --> store
               `--> thread --stdin--> worker --> store
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_core import settings
from forge_core.cache.cached import builder_at
from forge_core.cache.key import tag
from forge_core.cache.store import Store

__all__ = ["Outcome", "Request", "compile_all", "default_jobs"]

# A worker takes about a gigabyte.
_MAX_JOBS = 16
# A kernel that takes longer than this is given up, and its worker ended.
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
        else:
            outcomes[key.digest] = Outcome(request, key.digest, "present", found.seconds, found.bytes)
            on_done(outcomes[key.digest])
    reporting = threading.Lock()

    def done(outcome: Outcome) -> None:
        with reporting:
            outcomes[outcome.digest] = outcome
            on_done(outcome)

    threads = [
        threading.Thread(target=_feed, args=(waiting, store, done), name=f"forge-compile-{number}", daemon=True)
        for number in range(min(jobs or default_jobs(), waiting.qsize()))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcomes[digest] for digest in digests]


def _feed(waiting: queue.SimpleQueue[tuple[str, Request]], store: Store, done: Callable[[Outcome], None]) -> None:
    """Gives kernels to one worker until there are none; a worker that ends is replaced."""
    worker: _Worker | None = None
    try:
        while True:
            try:
                digest, request = waiting.get_nowait()
            except queue.Empty:
                return
            worker = worker or _Worker()
            answer = worker.ask(request, store)
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


class _Worker:
    """A fresh interpreter that compiles."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "forge_core.cache.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(os.environ, sys.path),
        )
        self._said: list[str] = []
        # Read as it comes: a worker whose pipe is full would wait for ever.
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        for line in self._process.stderr or ():
            self._said = [*self._said[-20:], line.rstrip()]

    def ask(self, request: Request, store: Store) -> dict[str, Any] | None:
        """The worker's answer, or None where it ended or gave none in time."""
        told = {
            "builder": request.builder,
            "config": tag(request.config),
            "arch": request.arch,
            "debug": settings.debug_requested(),
            "store": str(store.root.absolute()),
            "max_bytes": store.max_bytes,
        }
        alarm = threading.Timer(TIMEOUT_S, self._process.kill)
        alarm.start()
        try:
            assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018 - PIPE
            self._process.stdin.write(json.dumps(told) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            return None
        finally:
            alarm.cancel()
        # A worker that was killed while it answered leaves half a line.
        answer: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return answer

    def end(self) -> str:
        """Lets the worker end, and says how it did."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._reader.join(timeout=10)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return f"{how}: {self._said[-1]}" if self._said else how


def _environment(environ: os._Environ[str], path: Sequence[str]) -> dict[str, str]:
    return {
        **environ,
        # No GPU is touched, whatever a library does when it is imported.
        "CUDA_VISIBLE_DEVICES": "",
        # A worker finds what this process finds.
        "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in path),
    }
