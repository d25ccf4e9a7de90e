"""Compiles many kernels in worker processes, because ``cute.compile`` is not thread-safe.

    compile_all ---job--> python -m forge_core.cache.parallel    imports the compiler and the kernels' modules once
                <-results--          |  forks
                                 worker, worker ...              each compiles one kernel into the store

Importing takes two seconds, so the workers are forks of a server that has imported.  A fork that dies fails its own
kernel alone.  Job and results are JSON: a kernel is named by its builder's import path and its tagged configuration, so
the caller's main program is not run again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import IO, Any, TextIO

from forge_core import settings
from forge_core.cache.cached import builder_at
from forge_core.cache.key import tag, untag
from forge_core.cache.store import Store
from forge_core.processes import how_it_ended

_MAX_JOBS = 16  # a worker takes about a gigabyte
#: A worker that takes longer than this for one kernel is ended.
TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Request:
    """A kernel to compile."""

    builder: str  # "module:qualname" of its @compile_cached builder
    config: Any
    arch: str


@dataclass(frozen=True)
class Outcome:
    """The result of a request."""

    request: Request
    digest: str  # of the kernel's key
    status: str = "failed"  # or "compiled", or "present"
    seconds: float = 0.0  # compile time, now or earlier; 0 if it failed
    bytes: int = 0  # the object's size
    error: str = ""  # why it failed


def compile_all(
    requests: Iterable[Request],
    store: Store,
    *,
    jobs: int | None = None,
    on_done: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Compiles those of some kernels that a store lacks; one that fails does not stop the others.

    Args:
        requests: equal ones count once.
        store: where the kernels are stored.
        jobs: worker processes at a time; by default one for each processor, at most 16.
        on_done: called for each kernel when it is done.

    Returns:
        The outcomes in the order of the requests.

    Raises:
        CacheError: the store's folder is not safe.
        TypeError: a configuration cannot be part of a key.
    """
    wanted: dict[str, Request] = {}
    outcomes: dict[str, Outcome] = {}

    def done(digest: str, result: dict[str, Any]) -> None:
        outcomes[digest] = Outcome(wanted[digest], digest, **result)
        on_done(outcomes[digest])

    for request in requests:
        key = builder_at(request.builder).key(request.config, arch=request.arch)
        if key.digest not in wanted:
            wanted[key.digest] = request
            found = store.find(key)
            if found is not None:
                done(key.digest, {"status": "present", "seconds": found.seconds, "bytes": found.bytes})
    missing = {digest: request for digest, request in wanted.items() if digest not in outcomes}
    if missing:
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        job = {
            "requests": [(digest, each.builder, tag(each.config), each.arch) for digest, each in missing.items()],
            "jobs": jobs or min(processors, _MAX_JOBS),
            "timeout_s": TIMEOUT_S,
            "store": str(store.root.absolute()),
            "max_bytes": store.max_bytes,
        }
        ended = _run_server(job, done)
        for digest in missing.keys() - outcomes.keys():
            done(digest, {"error": f"the worker ended: {ended}"})
    return [outcomes[digest] for digest in wanted]


def _run_server(job: dict[str, Any], on_result: Callable[[str, dict[str, Any]], None]) -> str:
    """Calls back with the digest and the result of each request; returns how the server ended.

    Any exception, such as KeyboardInterrupt, kills the server and its workers.
    """
    environment = {
        **os.environ,
        # Libraries that initialise a GPU on import find none.
        "CUDA_VISIBLE_DEVICES": "",
        # A default, without which the DSL queries the driver in each worker; each compilation passes its own.
        "CUTE_DSL_ARCH": "sm_100a",
        # OpenBLAS, which NumPy loads, would start a thread per core, and only a process of one thread may fork.
        "OPENBLAS_NUM_THREADS": "1",
        "FORGE_DEBUG": str(int(settings.debug_requested())),
        # Workers import what this process would.
        "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
    }
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(json.dumps(job).encode())
        stdin.seek(0)
        with subprocess.Popen(
            [sys.executable, "-m", "forge_core.cache.parallel"],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            process_group=0,
        ) as server:
            try:
                for line in server.stdout or ():
                    if line.endswith(b"\n"):  # else the server was killed while it wrote
                        on_result(*json.loads(line))
                server.wait()
            finally:
                if server.returncode != 0:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(server.pid, signal.SIGKILL)
                    server.wait()  # Popen waits only a quarter of a second after a KeyboardInterrupt
        return _how_it_ended(server.returncode, stderr)


def _how_it_ended(status: int, stderr: IO[bytes]) -> str:
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - 4096))
    how = how_it_ended(status, stderr.read().decode(errors="replace"))
    return f"{how} (it took too long)" if status == -signal.SIGALRM else how


# ------------------------------------------------------------------------------------------------------ the server


def _serve() -> None:
    # Results have a descriptor of their own; what kernels or libraries print goes to stderr.
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job: dict[str, Any] = json.load(sys.stdin)
    signal.setitimer(signal.ITIMER_REAL, job["timeout_s"])
    for module in sorted({builder.partition(":")[0] for _, builder, _, _ in job["requests"]}):
        # A module that fails here fails again in the worker that needs it.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module)
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.freeze()  # keeps the imported objects shared with the forks
    fork = multiprocessing.get_context("fork")
    waiting = job["requests"][::-1]
    running: dict[Any, tuple[str, ForkProcess, IO[bytes]]] = {}  # by the receiver of its result: digest, worker, stderr
    while waiting or running:
        while waiting and len(running) < job["jobs"]:
            request = waiting.pop()
            receiver, sender = fork.Pipe(duplex=False)
            # Not a pipe, which a process that a kernel has started could keep open.
            stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the worker has ended
            worker = fork.Process(target=_work, args=(job, request, sender, stderr, results))
            worker.start()
            sender.close()  # the worker has the only one, so that its end is noticed
            running[receiver] = request[0], worker, stderr
        ready: list[Any] = connection.wait(running)
        for done in ready:
            digest, worker, stderr = running.pop(done)
            with done, stderr:
                try:
                    result = done.recv()
                    worker.kill()  # whatever else it runs
                    worker.join()
                except EOFError:
                    worker.join()
                    result = {"error": f"the worker ended: {_how_it_ended(worker.exitcode or 0, stderr)}"}
            results.write(json.dumps([digest, result]) + "\n")
            results.flush()


def _work(job: dict[str, Any], request: list[Any], sender: Any, stderr: IO[bytes], results: TextIO) -> None:
    results.close()  # so that the caller notices the end of the server
    os.dup2(stderr.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    signal.setitimer(signal.ITIMER_REAL, job["timeout_s"])
    sender.send(_compile(job, *request))


def _compile(job: dict[str, Any], digest: str, path: str, tagged: Any, arch: str) -> dict[str, Any]:
    try:
        # Imported before its key is computed, so that a change of the sources in between is noticed.
        builder = builder_at(path).imported()
        store = Store(Path(job["store"]), max_bytes=job["max_bytes"])
        entry, compiled = builder.ensure(untag(tagged), arch=arch, store=store)
    except Exception as error:  # noqa: BLE001 - reported by the caller
        return {"error": f"{type(error).__name__}: {error}"}
    if entry.key.digest != digest:
        return {"error": "its sources or its environment changed meanwhile"}
    return {"status": "compiled" if compiled else "present", "seconds": entry.seconds, "bytes": entry.bytes}


if __name__ == "__main__":
    _serve()
