"""One remote run: the GPU is checked, the command runs, and its files come back while it does.

Written against the protocol Machine, which ``modal_client`` implements for Modal and the tests fake.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

from plan import GPUS, GRACE, VENV, Plan

#: Seconds from one poll of the files to the next.
POLL_SECONDS = 30.0
#: What GNU timeout ends with at the limit; 137 is a SIGKILL, after the grace or for want of memory.
TIME_UP, KILLED = 124, 137
NAME = (f"{VENV}/bin/python", "-c", "import torch; print(torch.cuda.get_device_name())")
START = ("sh", "-c", 'echo $$ > .forge.pid; exec "$@"', "sh")
#: Interrupts the command, as Ctrl-C does, and waits until it has written down what it has; status 0 when it has ended.
INTERRUPT = (
    "p=$(cat .forge.pid) || exit 1; kill -INT $p; n=$1; "
    "while kill -0 $p && [ $n -gt 0 ]; do sleep 1; n=$((n - 1)); done; ! kill -0 $p"
)
STOP = ("sh", "-c", INTERRUPT, "sh", str(GRACE))
LIST = ("sh", "-c", "find \"$@\" -type f ! -name '.*' -printf '%s %T@ %p\\n' 2>/dev/null; true", "sh")

Say = Callable[[str], object]
#: Builds the image of a plan and rents its machine, which is given back however the block ends.
Rent = Callable[[Plan], AbstractContextManager["Machine"]]


class RemoteError(Exception):
    """The remote run was not made, or did not end; the message says why, what came back, and the way out."""


class Machine(Protocol):
    """A rented machine.  Its methods raise RemoteError where it, or the way to it, is gone."""

    def run(self, words: Sequence[str], say: Say) -> int:
        """Runs a command in the repository, passes on what it prints as it comes, and returns its exit status."""

    def read(self, path: str) -> bytes:
        """The contents of a file."""


def carry_out(plan: Plan, rent: Rent, say: Say) -> int:
    """Runs a plan and returns the exit status of its command.

    RemoteError: there are no credentials, the GPU is another, the time was up, or the machine was lost.
    """
    with rent(plan) as machine:
        _check_gpu(plan, machine)
        files = Files(plan, machine)
        try:
            status = files.run(say)
        except RemoteError as error:
            raise RemoteError(f"{error}\n{files.summary()}") from error
        except KeyboardInterrupt:
            say(f"\ninterrupted: the machine is given back; {files.summary()}\n")
            raise
    if status == TIME_UP:
        raise RemoteError(
            f"the limit of {plan.minutes} minutes was reached: give it more --minutes or less to do; prove goes on "
            f"where it ended by the same command, on the same GPU, driver and sources\n{files.summary()}"
        )
    if status == KILLED:
        raise RemoteError(f"the command was killed: out of memory, or it did not end at its limit\n{files.summary()}")
    say(f"\nexit status {status}; {files.summary()}\n{plan.after if files.brought else ''}\n")
    return status


def _check_gpu(plan: Plan, machine: Machine) -> None:
    printed: list[str] = []
    status = machine.run(NAME, printed.append)
    got = ("".join(printed).strip().splitlines() or [""])[-1]
    names = GPUS[plan.gpu].names
    if status != 0 or got not in names:
        raise RemoteError(
            f"expected a GPU that torch calls {' or '.join(map(repr, names))}, got {got!r} (exit status {status}): "
            "nothing was run on it. Try again, or name the GPU that you want by --gpu"
        )


class Files:
    """The files of a run: which changed there, and which of them came back.

    While the command runs, a file comes back when two polls found it with the same size and time, so that none comes
    half-written; when the command has ended, every file does.  A file that was there before and is the same stays.
    """

    def __init__(self, plan: Plan, machine: Machine) -> None:
        self.plan = plan
        self.machine = machine
        self.brought: dict[str, Path] = {}
        self._have = self._list()
        self._last: dict[str, str] = {}
        self._one = threading.Lock()

    def run(self, say: Say) -> int:
        """Runs the command; whole files come back while it runs, the rest when it ends or fails."""
        over = threading.Event()

        def poll() -> None:
            while not over.wait(POLL_SECONDS):
                with suppress(RemoteError):  # the last poll, or the command itself, raises it too
                    self.sync()

        threading.Thread(target=poll, daemon=True).start()
        try:
            status = self.machine.run([*START, *self.plan.command], say)
        except BaseException:
            with suppress(RemoteError):  # why it broke off says more
                self.sync(ended=self.machine.run(STOP, lambda _: None) == 0)
            raise
        finally:
            over.set()
        self.sync(ended=True)
        return status

    def sync(self, *, ended: bool = False) -> None:
        """Copies back the files that are whole; all of them when the command has ended."""
        with self._one:
            found = self._list()
            for path, stamp in found.items():
                if self._have.get(path) == stamp or not (ended or self._last.get(path) == stamp):
                    continue
                data = self.machine.read(path)
                size = int(stamp.split()[0])
                if len(data) == size:
                    write(self._local(path), data)
                    self._have[path], self.brought[path] = stamp, self._local(path)
                elif ended:
                    raise RemoteError(f"{path}: expected {size} bytes, got {len(data)}")
            self._last = found
            mirrored = tuple(f"{back.remote}/" for back in self.plan.back if back.mirrored)
            for path in [path for path in self._have if ended and path not in found and path.startswith(mirrored)]:
                self._local(path).unlink(missing_ok=True)
                self.brought.pop(path, None)

    def summary(self) -> str:
        """The files that came back, a line each."""
        return "\n".join(["came back:" if self.brought else "nothing came back", *map(str, self.brought.values())])

    def _list(self) -> dict[str, str]:
        """Size and time of each file, by its path there."""
        printed: list[str] = []
        self.machine.run([*LIST, *(back.remote for back in self.plan.back)], printed.append)
        rows = [line.split(" ", 2) for line in "".join(printed).splitlines()]
        return {row[2]: f"{row[0]} {row[1]}" for row in rows if len(row) == 3}

    def _local(self, path: str) -> Path:
        back = next(back for back in self.plan.back if f"{path}/".startswith(f"{back.remote}/"))
        return back.local / path.removeprefix(back.remote).lstrip("/")


def write(path: Path, data: bytes) -> None:
    """Writes a file so that it is whole or as it was; folders that lack are made."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        raise RemoteError(f"{path} cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            beside.unlink()
