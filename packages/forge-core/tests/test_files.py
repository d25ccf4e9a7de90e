"""Files are whole or as they were, and a log says how far a long work is."""

from __future__ import annotations

import gzip
import lzma
import os
import stat
import threading
from pathlib import Path

import pytest

from forge_core import progress as shown_in
from forge_core.files import read_unpacked, write_atomically
from forge_core.progress import progress


def test_a_file_is_made_with_its_folders(tmp_path):
    path = tmp_path / "a" / "b" / "record.json"
    write_atomically(path, "\u00e9\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    beside = tmp_path / "beside"
    beside.touch()
    assert path.stat().st_mode == beside.stat().st_mode
    assert [each.name for each in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize("suffix, unpack", [(".gz", gzip.decompress), (".xz", lzma.decompress)])
def test_a_file_whose_name_says_so_is_packed(suffix, unpack, tmp_path):
    text = "".join(f"{i % 7}\u00e9\n" for i in range(1000))
    plain, packed = tmp_path / "record.json", tmp_path / f"record.json{suffix}"
    write_atomically(plain, text)
    write_atomically(packed, text)
    assert read_unpacked(plain) == read_unpacked(packed) == plain.read_bytes() == text.encode()
    first = packed.read_bytes()
    assert unpack(first) == text.encode() and len(first) < len(text) / 10
    write_atomically(packed, text)
    assert packed.read_bytes() == first


@pytest.mark.parametrize("suffix", ["gz", "xz"])
@pytest.mark.parametrize("spoil", [lambda data: data[:-9], lambda data: b"{}", lambda data: data[:40] + b"\0" * 40])
def test_a_packed_file_that_is_damaged_is_an_error_that_names_it(tmp_path, spoil, suffix):
    path = tmp_path / f"record.json.{suffix}"
    write_atomically(path, "".join(map(str, range(1000))))
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(OSError, match=rf"(?s)record\.json\.{suffix}: expected a file packed by {suffix}"):
        read_unpacked(path)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt], ids=lambda kind: kind.__name__)
def test_what_is_interrupted_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, error):
    path = tmp_path / "record.json"
    path.write_text("old")

    def interrupted(self, target):
        raise error

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(error):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path):
    path, link = tmp_path / "record.json", tmp_path / "newest.json"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to(path.name)
    write_atomically(link, "new")
    assert link.is_symlink() and path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of Unix")
def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write_atomically(path, "record")
    reader.join(30)
    assert read == ["record"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_standard_output_is_written_to_by_its_name(python):
    code = (
        "from pathlib import Path; from forge_core.files import write_atomically as w; w(Path('/dev/stdout'), 'record')"
    )
    assert python("-c", code) == "record"


def test_a_file_in_a_folder_that_takes_no_other_is_written_to(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    path.write_text("old")
    number = path.stat().st_ino
    monkeypatch.setattr(os, "access", lambda folder, how: False)
    write_atomically(path, "new")
    assert (path.read_text(), path.stat().st_ino) == ("new", number)


def test_a_log_has_a_line_for_each(capsys):
    with progress(2) as shown:
        shown("first")
        shown("second")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" (ends")[0] for line in lines] == ["[1/2] first", "[2/2] second"]


def test_a_log_of_many_small_works_has_a_line_at_first_and_now_and_then(capsys, monkeypatch):
    with progress(3, "compiling kernels", each=False) as shown:
        assert capsys.readouterr().err == "compiling kernels: 3 to do\n"
        shown("first")
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(shown_in, "NOTES", 0.0)
        shown("second")
    assert "compiling kernels: 2 of 3 (ends about " in capsys.readouterr().err
