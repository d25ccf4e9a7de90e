"""Machines of Modal; the only module that imports it.  Written for modal 1.6.4, never run against the service."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import modal
import modal.config
import modal.exception
from plan import BASE, CACHE, CORES, GIB, GPUS, PYTHON, ROOT, SOURCES, VARIABLES, VOLUME, Plan
from session import RemoteError, Say

APP = "forge-remote"
TOKENS = (
    f"expected Modal's credentials, found none that it accepts: run `{sys.executable} -m modal setup`, or set "
    "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
)


@contextmanager
def _remote_errors() -> Iterator[None]:
    """Raises Modal's errors as RemoteError."""
    try:
        yield
    except modal.exception.AuthError as error:
        raise RemoteError(f"{TOKENS} ({error})") from error
    except modal.exception.TimeoutError as error:
        raise RemoteError(f"Modal ended the machine at its time limit: {type(error).__name__} {error}") from error
    except (modal.exception.Error, ConnectionError) as error:
        raise RemoteError(f"Modal: {type(error).__name__}: {error}") from error


@contextmanager
def rented(plan: Plan) -> Iterator[ModalMachine]:
    """Builds the image, starts a sandbox of an app that ends with this process, and terminates it at the block's end.

    Without configured credentials it raises before the service is asked for anything.
    """
    known = modal.config.config
    if not (known.get("token_id") and known.get("token_secret")) and not known.get("oauth_refresh_token"):
        raise RemoteError(TOKENS)
    with _remote_errors(), ExitStack() as stack:
        stack.enter_context(modal.enable_output())
        staged = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forge-remote-")))
        app = modal.App(APP)
        stack.enter_context(app.run())
        sandbox = modal.Sandbox.create(
            *("sleep", str(plan.seconds)),
            app=app,
            image=image_of(plan, staged),
            gpu=GPUS[plan.gpu].asked,
            cpu=(float(CORES), float(CORES)),
            memory=(1024 * GIB, 1024 * GIB),
            timeout=plan.seconds,
            workdir=SOURCES,
            volumes={CACHE: modal.Volume.from_name(VOLUME, create_if_missing=True)},
        )
        stack.callback(_stop, sandbox)
        yield ModalMachine(sandbox)


def _stop(sandbox: modal.Sandbox) -> None:
    with suppress(modal.exception.Error):  # the end of the app stops it, too, and its own time limit
        sandbox.terminate()


def image_of(plan: Plan, staged: Path) -> modal.Image:
    """The image of a plan's steps; what they copy is first put into a folder of its own."""
    image = modal.Image.from_registry(BASE, add_python=PYTHON).entrypoint([])
    for number, step in enumerate(plan.image):
        if step.verb == "RUN":
            image = image.run_commands(step.what)
        elif step.verb == "COPY":
            folder = staged / str(number)
            for file in step.files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, folder / file)
            image = image.add_local_dir(folder, SOURCES, copy=True)
    return image


class ModalMachine:
    """A sandbox that is running."""

    def __init__(self, sandbox: modal.Sandbox) -> None:
        self.sandbox = sandbox

    def run(self, words: Sequence[str], say: Say) -> int:
        """Runs a command in the repository; what it prints to either stream comes as one."""
        with _remote_errors():
            joined = ("sh", "-c", 'exec "$@" 2>&1', "sh", *words)
            process = self.sandbox.exec(*joined, workdir=SOURCES, env=dict(VARIABLES))
            for part in process.stdout:
                say(part)
            return int(process.wait())

    def read(self, path: str) -> bytes:
        """The contents of a file."""
        with _remote_errors():
            return bytes(self.sandbox.filesystem.read_bytes(path))
