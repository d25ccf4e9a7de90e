"""A process that compiles kernels for another one: ``python -m forge_core.cache.worker [fork-server]``.

It reads one JSON line for each kernel and answers with one.  A kernel is named by its builder's import path and its
tagged configuration, so nothing is pickled, and nothing of the parent's main program is run again.  It sees no GPU.

As a fork server it reads one line, which names modules and pairs of file descriptors; it imports the modules and forks
once for each pair: a socket on which the fork is asked and answers, and the fork's stderr.  What it writes tells of its
forks: ``{"worker": 0, "pid": 123}``, and when it has ended ``{"worker": 0, "status": 0}``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from forge_core.cache.cached import builder_at
from forge_core.cache.key import untag
from forge_core.cache.store import Store
from forge_core.settings import use_settings

__all__ = ["main"]


def _compile(told: dict[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    store = Store(Path(told["store"]), max_bytes=told["max_bytes"])
    with use_settings(debug=told["debug"]):
        # Imported before its key is made, so that a change of the sources in between is seen.
        builder = builder_at(told["builder"])._imported()
        config = untag(told["config"])
        entry, compiled = builder.ensure(config, arch=told["arch"], store=store)
    return {
        "digest": entry.key.digest,
        "compiled": compiled,
        "seconds": entry.seconds,
        "bytes": entry.bytes,
        "wall_s": round(time.perf_counter() - start, 4),
    }


def _serve(requests: TextIO, answers: TextIO) -> None:
    for line in requests:
        try:
            answer = _compile(json.loads(line))
        except Exception as error:  # noqa: BLE001 - it crosses to the parent as text, which reports it by kernel
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _serve_forks(orders: TextIO, reports: TextIO) -> None:
    told = json.loads(orders.readline())
    pairs: list[tuple[int, int]] = [tuple(pair) for pair in told["workers"]]
    for descriptor in (each for pair in pairs for each in pair):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - what a module starts is not to keep them open
    for module in told["modules"]:
        # Whoever is asked for it imports it again, and says what is wrong.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module)
    gc.freeze()  # what has been imported is nobody's to collect, and stays shared with the forks
    forks: dict[int, int] = {}
    for number in range(len(pairs)):
        pid = os.fork()
        if pid == 0:
            reports.close()  # the parent knows by its end that the server has ended
            _be_a_fork(pairs, number)
        forks[pid] = number
        _report(reports, {"worker": number, "pid": pid})
    for descriptor in (each for pair in pairs for each in pair):
        os.close(descriptor)
    while forks:
        pid, status = os.wait()
        if pid in forks:  # and not what a module has started
            _report(reports, {"worker": forks.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def _be_a_fork(pairs: Sequence[tuple[int, int]], number: int) -> NoReturn:
    """Serves on one of the pairs, and ends the process, whatever happens: it is not to go on as the server."""
    status = 1
    try:
        connection, errors = pairs[number]
        os.dup2(errors, 2)
        os.dup2(2, 1)
        # A socket is at its end when everybody has closed it.
        for descriptor in (each for pair in pairs for each in pair):
            if descriptor != connection:
                os.close(descriptor)
        with socket.socket(fileno=connection) as own, own.makefile("r") as requests, own.makefile("w") as answers:
            _serve(requests, answers)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - the parent shows the last line of it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _report(reports: TextIO, told: dict[str, int]) -> None:
    reports.write(json.dumps(told) + "\n")
    reports.flush()


def main(words: Sequence[str]) -> int:
    """Serves until the parent closes its end."""
    # What kernels or libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if list(words) == ["fork-server"]:
        _serve_forks(sys.stdin, answers)
    else:
        _serve(sys.stdin, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
