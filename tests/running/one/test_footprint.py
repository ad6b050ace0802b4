from __future__ import annotations

import contextlib
import functools
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.running.one import footprint

take = functools.partial(footprint.take, limit_s=120.0)


def fill(folder: Path) -> None:
    (folder / "data" / "inner").mkdir(parents=True)
    (folder / "train.py").write_text("print()")
    (folder / "data" / "inner" / "x").write_text("x")
    for ignored in (".git", ".flatout", "__pycache__", ".venv"):
        (folder / ignored).mkdir()


def test_new_removed_and_written_files_are_named(tmp_path: Path) -> None:
    fill(tmp_path)
    before = take(tmp_path)
    (tmp_path / "train.py").read_text()
    assert before.complete
    assert footprint.changed(before, take(tmp_path)) == ()
    (tmp_path / "data" / "inner" / "x").unlink()
    (tmp_path / "model.bin").write_bytes(b"weights")
    (tmp_path / "train.py").write_text("PRINT()")  # of the same size
    os.utime(tmp_path / "train.py", (1, 1))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "events").write_text("")
    (tmp_path / ".flatout" / "plan").write_text("")
    after = take(tmp_path)
    assert footprint.changed(before, after) == ("data/inner/x", "model.bin", "runs", "train.py")
    assert take(tmp_path / "missing").entries == {}


def test_what_a_limit_left_out_is_not_taken_for_a_change(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / "data" / str(number)).mkdir(parents=True)
        (tmp_path / "data" / str(number) / "x").write_text("")
    full, part = take(tmp_path), take(tmp_path, limit_entries=25)
    assert full.complete and not part.complete
    assert footprint.changed(full, part) == footprint.changed(part, full) == ()
    (tmp_path / "data" / "new").write_text("")
    assert footprint.changed(part, take(tmp_path)) == ("data/new",)


def test_the_file_that_our_own_output_goes_to_is_no_change(tmp_path: Path) -> None:
    program = (
        "from functools import partial; from pathlib import Path\n"
        "from flatout.running.one import footprint\n"
        "take = partial(footprint.take, limit_s=120.0)\n"
        "before = take(Path.cwd()); print('told', flush=True)\n"
        "Path('other').write_text('x')\n"
        "import sys; sys.stderr.write(repr(footprint.changed(before, take(Path.cwd()))))"
    )
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, stdout=log, stderr=subprocess.PIPE
        )
    assert done.stderr == b"('other',)"


class WindowsEntry:
    """An entry of a listing on Windows: it numbers no files."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self.name, self.path, self.is_dir = entry.name, entry.path, entry.is_dir
        self._entry = entry

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        fields = list(self._entry.stat(follow_symlinks=follow_symlinks))
        fields[stat.ST_INO] = fields[stat.ST_DEV] = 0
        return os.stat_result(fields)


def on_windows(folder: Path, output: os.stat_result) -> footprint.Footprint:
    """The footprint there, where `output` is the status of our stdout and stderr."""
    scandir = os.scandir

    @contextlib.contextmanager
    def listing(path: Any) -> Iterator[Iterator[WindowsEntry]]:
        with scandir(path) as entries:
            yield map(WindowsEntry, entries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        patch.setattr(os, "scandir", listing)
        patch.setattr(os, "fstat", lambda descriptor: output)
        return take(folder)


def test_overwritten_files_are_seen_at_a_windows_console(tmp_path: Path) -> None:
    console = os.stat_result([stat.S_IFCHR, *[0] * 9])
    (tmp_path / "model.pt").write_text("old")
    before = on_windows(tmp_path, console)
    (tmp_path / "model.pt").write_text("newer")
    assert footprint.changed(before, on_windows(tmp_path, console)) == ("model.pt",)


def test_our_own_log_is_known_where_a_listing_numbers_no_files(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    (tmp_path / "model.pt").write_text("old")
    before = on_windows(tmp_path, log.stat())
    log.write_text("a line")
    (tmp_path / "model.pt").write_text("newer")
    assert footprint.changed(before, on_windows(tmp_path, log.stat())) == ("model.pt",)
