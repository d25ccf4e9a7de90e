"""The processes that compile: interpreters of their own, which see no GPU.

A process that has initialised CUDA must not fork, so a worker is a fresh interpreter.  Where there are several, they
are the forks of one that has imported the compiler and the kernels' modules for all of them:

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
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

__all__ = ["Fork", "ForkServer", "Interpreter", "Worker", "start"]

#: A kernel that takes longer than this is given up, and its worker ended.
TIMEOUT_S = 900.0

#: Seconds that a worker has to end by itself.
END_S = 10.0


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
        yield list(server.forks)
    except BaseException:  # Ctrl-C, say: nobody waits for the kernels any more
        server.kill_all()
        raise
    finally:
        server.end()


class Worker(ABC):
    """A process that answers one line of JSON with another, and what it last said on its stderr."""

    def __init__(self, requests: IO[str], answers: IO[str], said: IO[str]) -> None:
        self._requests, self._answers, self._errors = requests, answers, said
        self._said: list[str] = []
        # Read as it comes: a worker whose pipe is full would wait for ever.
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        for line in self._errors:
            self._said = [*self._said[-20:], line.rstrip()]

    def ask(self, told: dict[str, Any]) -> dict[str, Any] | None:
        """The worker's answer, or None where it ended or gave none in time."""
        alarm = threading.Timer(TIMEOUT_S, self._give_up)
        alarm.start()
        try:
            self._requests.write(json.dumps(told) + "\n")
            self._requests.flush()
            line = self._answers.readline()
        except (BrokenPipeError, ConnectionResetError):
            return None
        finally:
            alarm.cancel()
        # A worker that was killed while it answered leaves half a line.
        answer: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return answer

    def end(self) -> str:
        """Lets the worker end, and says how it did."""
        self._hang_up()
        status = self._status(END_S)
        if status is None:
            self._kill()
            status = self._status(END_S)
        self._reader.join(timeout=END_S)
        for pipe in (self._requests, self._answers, self._errors):
            with contextlib.suppress(BrokenPipeError):  # what it was not told any more
                pipe.close()
        how = _how(status)
        return f"{how}: {self._said[-1]}" if self._said else how

    @abstractmethod
    def _hang_up(self) -> None:
        """Tells the process that nothing more is asked."""

    @abstractmethod
    def _kill(self) -> None:
        """Ends the process, if there is one."""

    def _give_up(self) -> None:
        """Ends what does not answer in time."""
        self._kill()

    @abstractmethod
    def _status(self, timeout: float) -> int | None:
        """The exit status, or minus a signal; None where the process has not ended in time."""


def _how(status: int | None) -> str:
    if status is None:
        return "no exit status"
    return f"signal {-status}" if status < 0 else f"exit status {status}"


class Interpreter(Worker):
    """A fresh interpreter."""

    def __init__(self) -> None:
        self._process = _launch()
        assert self._process.stdin and self._process.stdout and self._process.stderr  # noqa: S101, PT018 - asked for
        super().__init__(self._process.stdin, self._process.stdout, self._process.stderr)

    def __str__(self) -> str:
        return f"interpreter {self._process.pid}"

    def _hang_up(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()

    def _kill(self) -> None:
        self._process.kill()

    def _status(self, timeout: float) -> int | None:
        try:
            return self._process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            return None


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
        """Lets the worker end, and says how it did."""
        told = super().end()
        self._connection.close()
        return told


class ForkServer:
    """A process that imports, forks, and tells of its forks' processes.

    Args:
        count: forks.
        modules: what it imports before.

    Attributes:
        forks: the workers.
    """

    def __init__(self, count: int, modules: Sequence[str]) -> None:
        ours, theirs = zip(*(socket.socketpair() for _ in range(count)), strict=True)
        read, write = zip(*(os.pipe() for _ in range(count)), strict=True)
        passed = [end.fileno() for end in theirs]
        try:
            # OpenBLAS, which NumPy brings along, would start a thread for each core, and only one thread may fork.
            self._process = _launch("fork-server", pass_fds=(*passed, *write), OPENBLAS_NUM_THREADS="1")
            told = {"modules": list(modules), "workers": list(zip(passed, write, strict=True))}
            assert self._process.stdin is not None  # noqa: S101 - asked for
            with contextlib.suppress(BrokenPipeError):  # it has ended, which its forks' silence will show
                self._process.stdin.write(json.dumps(told) + "\n")
                self._process.stdin.flush()
        finally:
            for end in theirs:
                end.close()
            for number in write:
                os.close(number)
        self._pids: dict[int, int] = {}
        self._ended: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in range(count)]
        self._said: list[str] = []
        self._readers = [threading.Thread(target=each, daemon=True) for each in (self._follow, self._listen)]
        for reader in self._readers:
            reader.start()
        self.forks = [Fork(self, i, ours[i], os.fdopen(read[i])) for i in range(count)]

    def _follow(self) -> None:
        for line in self._process.stdout or ():
            told = json.loads(line)
            if "pid" in told:
                self._pids[told["worker"]] = told["pid"]
            else:
                self._ended[told["worker"]].put(told["status"])
        # Forks that it did not come to, or whose end it did not see: they are told by its own.
        status = self._process.wait()
        for ended in self._ended:
            ended.put(status)

    def _listen(self) -> None:
        for line in self._process.stderr or ():
            self._said = [*self._said[-20:], line.rstrip()]

    def kill(self, number: int) -> bool:
        """Ends a fork; returns whether it was there already."""
        pid = self._pids.get(number)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    def kill_all(self) -> None:
        """Ends the server and all of its forks."""
        self._process.kill()
        for number in range(len(self.forks)):
            self.kill(number)

    def status(self, number: int, timeout: float) -> int | None:
        """The exit status of a fork, or minus a signal; None where it has not ended in time."""
        try:
            return self._ended[number].get(timeout=timeout)
        except queue.Empty:
            return None

    def end(self) -> None:
        """Waits for the server, whose forks have ended."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(timeout=END_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _launch(*words: str, pass_fds: Sequence[int] = (), **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "forge_core.cache.worker", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=pass_fds,
        env={
            **os.environ,
            **variables,
            # No GPU is touched, whatever a library does when it is imported.
            "CUDA_VISIBLE_DEVICES": "",
            # A worker finds what this process finds.
            "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
        },
    )
