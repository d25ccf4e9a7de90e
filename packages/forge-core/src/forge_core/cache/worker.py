"""Compiles kernels for another process: ``python -m forge_core.cache.worker``.

    caller --order--> server, which imports the compiler and the kernels' modules, then forks
           <-answers--  |  ^
                        v  |   one request at a time, over a pipe to each
                      fork, fork ...

Importing takes an interpreter two seconds of a core, and side by side it can take far more, so one imports for all.
A fork that dies fails its own request and is replaced.  The order and the answers are JSON: kernels are named by their
builder's import path and their tagged configuration, so nothing of the caller's main program is run again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import IO, Any, TextIO, TypedDict

from forge_core.cache.cached import builder_at
from forge_core.cache.key import untag
from forge_core.cache.store import Store
from forge_core.settings import use_settings

__all__ = ["Order", "how_it_ended"]


class Order(TypedDict):
    """What the server reads from its stdin."""

    # Each the key's digest, the builder's path, the tagged configuration and the architecture.
    requests: list[tuple[str, str, Any, str]]
    modules: list[str]  # imported before the server forks
    jobs: int
    timeout_s: float  # a fork that takes longer for one kernel is ended
    store: str
    max_bytes: int
    debug: bool


@dataclass
class _Fork:
    """A process that compiles."""

    pid: int
    said: IO[bytes]  # the file that its stdout and stderr go to
    number: int  # of the request that it works on


def _serve(order: Order, answers: TextIO) -> None:
    """Hands the requests out to forks; writes ``[digest, answer]`` for each."""
    waiting = list(range(len(order["requests"])))[::-1]
    forks: dict[Connection, _Fork] = {}
    while waiting or forks:
        while waiting and len(forks) < order["jobs"]:
            connection, fork = _start(order, waiting.pop(), [answers, *forks])
            forks[connection] = fork
        ready = wait([*forks])
        for connection, fork in [(each, fork) for each, fork in forks.items() if each in ready]:
            number, goes_on = fork.number, bool(waiting)
            try:
                answer = json.loads(connection.recv_bytes())
            except (EOFError, OSError):
                status = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
                answer = {"error": f"the worker ended: {how_it_ended(status, fork.said)}"}
                goes_on = False
            if goes_on:
                fork.number = waiting.pop()
                with contextlib.suppress(BrokenPipeError):  # it has just died, which its pipe will tell
                    connection.send_bytes(str(fork.number).encode())
            else:
                connection.close()  # a fork that lives ends by that
                fork.said.close()
                del forks[connection]
            answers.write(json.dumps([order["requests"][number][0], answer]) + "\n")
            answers.flush()


def _start(order: Order, number: int, inherited: Iterable[TextIO | Connection]) -> tuple[Connection, _Fork]:
    """Forks a worker, which begins with one of the requests."""
    ours, theirs = Pipe()
    # Not a pipe, which what a kernel has started could keep open.
    said = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the fork has ended
    pid = os.fork()
    if pid:
        theirs.close()
        return ours, _Fork(pid, said, number)
    status = 1
    try:  # whatever happens, this process must not go on as the server
        # A pipe is at its end when everybody has closed it.
        for each in (ours, *inherited):
            each.close()
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        with contextlib.suppress(EOFError):
            while True:
                theirs.send_bytes(json.dumps(_answer(order, number)).encode())
                number = int(theirs.recv_bytes())
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - the caller shows the last line of it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _answer(order: Order, number: int) -> dict[str, Any]:
    """Compiles one kernel into the store, unless it is there; ends the process where that takes too long."""
    digest, path, tagged, arch = order["requests"][number]
    signal.setitimer(signal.ITIMER_REAL, order["timeout_s"])
    try:
        with use_settings(debug=order["debug"]):
            # Imported before its key is made, so that a change of the sources in between is seen.
            builder = builder_at(path)._imported()
            store = Store(Path(order["store"]), max_bytes=order["max_bytes"])
            entry, compiled = builder.ensure(untag(tagged), arch=arch, store=store)
    except Exception as error:  # noqa: BLE001 - it crosses to the caller as text, which reports it by kernel
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if entry.key.digest != digest:
        return {"error": "its sources or its environment changed meanwhile"}
    return {"status": "compiled" if compiled else "present", "seconds": entry.seconds, "bytes": entry.bytes}


def how_it_ended(status: int, said: IO[bytes]) -> str:
    """An exit status, or minus a signal, and the last line that the process wrote to a file."""
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    if status == -signal.SIGALRM:
        how += " (it took too long)"
    said.seek(max(0, said.seek(0, os.SEEK_END) - 4096))
    lines = said.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{how}: {last}" if last else how


def _main() -> None:
    # What kernels or libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    order: Order = json.load(sys.stdin)
    signal.setitimer(signal.ITIMER_REAL, order["timeout_s"])
    for module in order["modules"]:
        # The fork that needs it imports it again, and says what is wrong.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module)
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.freeze()  # what has been imported is nobody's to collect, and stays shared with the forks
    _serve(order, answers)


if __name__ == "__main__":
    _main()
