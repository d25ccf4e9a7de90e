"""What a proof that was interrupted has shown so far: one file, written anew after each chunk, and journals beside it.

state.json               what whole chunks showed
journals/<digest>.jsonl  what the tests of a chunk showed, a line as each ends (``journal``)
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from forge_core.files import write_atomically
from forge_core.testing.proofs.declare import digest_of
from forge_core.testing.proofs.execute import Chunk, Result

__all__ = ["State"]


class _Kept(msgspec.Struct):
    key: str
    chunks: dict[str, Result]


class State:
    """The chunks that are done, of a proof under one key.

    Args:
        path: the file.
        key: says all that a result depends on: sources, tests, GPU, versions.  What was kept under another is dropped.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self._kept = _Kept(key, {})
        self._journals = path.parent / "journals"
        # Those of another key are of no use any more.
        for old in self._journals.glob("*.jsonl"):
            if not old.name.startswith(self._name_of("")):
                old.unlink()
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_Kept)
        except (OSError, msgspec.MsgspecError):
            return  # none, or one that cannot be read: everything is run
        if found.key == key:
            self._kept = found

    def get(self, chunk: Chunk) -> Result | None:
        """What a chunk showed before the interruption, or None."""
        return self._kept.chunks.get(digest_of(msgspec.to_builtins(chunk)))

    def put(self, chunk: Chunk, result: Result) -> None:
        """Keeps what a chunk showed."""
        self._kept.chunks[digest_of(msgspec.to_builtins(chunk))] = result
        write_atomically(self.path, msgspec.json.encode(self._kept).decode())

    def journal(self, chunk: Chunk) -> Path:
        """Where the tests of a chunk are to be noted as they end."""
        return self._journals / f"{self._name_of(digest_of(msgspec.to_builtins(chunk))[:16])}.jsonl"

    def finished(self) -> None:
        """Forgets everything: the record has it now."""
        self.path.unlink(missing_ok=True)
        # Left behind, they would spare a later run of everything its tests.
        if self._journals.exists():
            shutil.rmtree(self._journals)

    def _name_of(self, chunk: str) -> str:
        return f"{digest_of(self._kept.key)[:16]}-{chunk}"
