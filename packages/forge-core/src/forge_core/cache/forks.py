"""Workers that are the forks of one interpreter, which has imported the compiler and the kernels' modules for all.

    this process --stdin, stdout--> fork server, which imports
         |                             |     |
         `--- a socket each ---------> fork  fork ...            each is asked for one kernel after the other

Importing costs each interpreter two seconds of a core, and side by side it can cost far more: on a virtual machine of
16 cores, 16 interpreters had compiled their first kernel after 84 s, where one alone takes 3 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import IO

from forge_core.cache import processes
from forge_core.cache.processes import Interpreter, Worker

__all__ = ["Fork", "ForkServer", "start"]

#: What stands for the process of a fork that has ended.
GONE = 0


@contextlib.contextmanager
def start(count: int, modules: Sequence[str]) -> Iterator[list[Worker]]:
    """Some workers; whoever uses one ends it.

    Args:
        count: how many.
        modules: what they import first: those of the builders that they will be asked for.
    """
    if count < 2 or sys.platform != "linux":
        yield [Interpreter() for _ in range(count)]
        return
    server = ForkServer(count, modules)
    try:
        yield server.forks
    except BaseException:  # Ctrl-C, say: nobody waits for the kernels any more
        server.kill_all()
        raise
    finally:
        server.end()


class Fork(Worker):
    """A fork of a server's.

    Args:
        server: the server, which knows its process.
        number: which of the server's.
        connection: for requests and answers.
        said: the process's stderr.
    """

    def __init__(self, server: ForkServer, number: int, connection: socket.socket, said: IO[str]) -> None:
        self._server, self._number, self._connection = server, number, connection
        super().__init__(connection.makefile("w"), connection.makefile("r"), said)

    def __str__(self) -> str:
        return f"fork {self._number}"

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            self._connection.shutdown(socket.SHUT_WR)

    def _kill(self) -> None:
        self._server.kill(self._number)

    def _give_up(self) -> None:
        if not self._server.kill(self._number):
            self._server.kill_all()  # it has not come to forking

    def _status(self, timeout: float) -> int | None:
        return self._server.status(self._number, timeout)

    def end(self) -> str:
        """Lets the worker end, and says how it did; where it did not come to be, how its server ended."""
        told = super().end()
        self._connection.close()
        return self._server.why(told) if self._server.pid(self._number) is None else told


class ForkServer:
    """A process that imports, forks, and tells of its forks' processes.

    Args:
        count: forks.
        modules: what it imports before.

    Attributes:
        forks: the workers.
    """

    def __init__(self, count: int, modules: Sequence[str]) -> None:
        self._pids: dict[int, int] = {}
        self._ended: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in range(count)]
        self._said: list[str] = []
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            connections, outputs, passed = [], [], []
            for _ in range(count):
                connection, its = socket.socketpair()
                ours.enter_context(connection)
                theirs.enter_context(its)
                read, write = os.pipe()
                outputs.append(ours.enter_context(os.fdopen(read)))
                theirs.callback(os.close, write)
                connections.append(connection)
                passed.append((its.fileno(), write))
            descriptors = [each for pair in passed for each in pair]
            # OpenBLAS, which NumPy brings along, would start a thread for each core, and only one thread may fork.
            self._process = processes.launch("fork-server", pass_fds=descriptors, OPENBLAS_NUM_THREADS="1")
            ours.callback(self._process.kill)
            self._orders, reports, said = processes.pipes(self._process)
            with contextlib.suppress(BrokenPipeError):  # it has ended, which its forks' silence will show
                self._orders.write(json.dumps({"modules": list(modules), "workers": passed}) + "\n")
                self._orders.flush()
            self._readers = [
                threading.Thread(target=self._follow, args=(reports,), daemon=True),
                threading.Thread(target=self._listen, args=(said,), daemon=True),
            ]
            for reader in self._readers:
                reader.start()
            pairs = zip(connections, outputs, strict=True)
            self.forks: list[Worker] = [Fork(self, number, *pair) for number, pair in enumerate(pairs)]
            ours.pop_all()

    def _follow(self, stdout: IO[str]) -> None:
        with stdout:
            for line in stdout:
                if not line.endswith("\n"):
                    break  # it was killed while it wrote
                told = json.loads(line)
                if "pid" in told:
                    self._pids[told["worker"]] = told["pid"]
                else:
                    self._pids[told["worker"]] = GONE  # another process may get its number
                    self._ended[told["worker"]].put(told["status"])
        # Forks that it did not come to, or whose end it did not see: they are told by its own.
        status = self._process.wait()
        for ended in self._ended:
            ended.put(status)

    def _listen(self, stderr: IO[str]) -> None:
        with stderr:
            for line in stderr:
                self._said = [*self._said[-20:], line.rstrip()]

    def kill(self, number: int) -> bool:
        """Ends a fork; returns whether it was there already."""
        pid = self.pid(number)
        if pid is not None and pid != GONE:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    def kill_all(self) -> None:
        """Ends the server and all of its forks."""
        self._process.kill()
        for number in list(self._pids):
            self.kill(number)

    def pid(self, number: int) -> int | None:
        """A fork's process, ``GONE`` where it has ended; None where it has not been forked."""
        return self._pids.get(number)

    def why(self, told: str) -> str:
        """How the server ended, and what it last said."""
        return f"{told}: {self._said[-1]}" if self._said else told

    def status(self, number: int, timeout: float) -> int | None:
        """The exit status of a fork, or minus a signal; None where it has not ended in time."""
        try:
            return self._ended[number].get(timeout=timeout)
        except queue.Empty:
            return None

    def end(self) -> None:
        """Waits for the server, whose forks have ended."""
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        try:
            self._process.wait(timeout=processes.END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(timeout=processes.LAST_WORDS_S)
