"""A process that compiles, as the one that asks it sees it: an interpreter of its own, which sees no GPU.

A process that has initialised CUDA must not fork, so a worker is a fresh interpreter, or a fork of one (``forks``).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

__all__ = ["Interpreter", "Worker", "launch", "pipes"]

#: A kernel that takes longer than this is given up, and its worker ended.
TIMEOUT_S = 900.0

#: Seconds that a worker has to end by itself.
END_S = 10.0

#: Seconds until what an ended process has said is read.  What it has started may keep its stderr open for longer.
LAST_WORDS_S = 1.0


class Worker(ABC):
    """A process that answers one line of JSON with another, and what it last said on its stderr."""

    def __init__(self, requests: IO[str], answers: IO[str], said: IO[str]) -> None:
        self._requests, self._answers, self._errors = requests, answers, said
        self._said: list[str] = []
        # Read as it comes: a worker whose pipe is full would wait for ever.
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        with self._errors:
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
        self._reader.join(timeout=LAST_WORDS_S)
        for pipe in (self._requests, self._answers):
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
        self._process = launch()
        super().__init__(*pipes(self._process))

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


def launch(*words: str, pass_fds: Sequence[int] = (), **variables: str) -> subprocess.Popen[str]:
    """Starts ``worker``; the arguments are its words, descriptors that it gets, and variables of its environment."""
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


def pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str], IO[str]]:
    """The stdin, stdout and stderr of what :func:`launch` has started."""
    return cast("tuple[IO[str], IO[str], IO[str]]", (process.stdin, process.stdout, process.stderr))
