import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from flatout_train.checkpoint import files
from flatout_train.checkpoint import reading as checkpoint_reading
from flatout_train.checkpoint import writing as checkpoint_writing
from flatout_train.checkpoint.ranks import CheckpointRanks
from flatout_train.errors import CheckpointError


def save(folder, step, keep=2):
    states = {"value": {"step": step}, files.RANDOM_STATES: {"bytes": "x" * 1000}}
    staged = checkpoint_writing.Staged(step, states, {}, lambda: None)
    return checkpoint_writing.write(staged, folder, CheckpointRanks(), keep)


def newest(folder):
    found = checkpoint_reading.newest(folder, CheckpointRanks())
    return found and checkpoint_reading.read(found.path, "value", 0)["step"]


@pytest.fixture
def folder(tmp_path):
    return files.Folder(tmp_path / "run")


class Crash(BaseException):
    """The machine stops here."""


@pytest.fixture
def crashes(monkeypatch):
    """Makes the n-th change to the disk the last one; a file that is written then is cut short."""
    left = [10**9]

    def stopping(plain):
        def act(path, *arguments):
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            result = plain(path, *arguments)
            if left[0] == 0 and plain == write:
                os.truncate(path, path.stat().st_size // 2)
            return result

        return act

    write = files.write
    monkeypatch.setattr(files, "write", stopping(files.write))
    monkeypatch.setattr(files, "discard", stopping(files.discard))
    monkeypatch.setattr(files, "_flush_folder", stopping(files._flush_folder))
    monkeypatch.setattr(Path, "rename", stopping(Path.rename))
    return left


def test_a_crash_between_any_two_changes_leaves_a_good_checkpoint(tmp_path, crashes):
    first = files.Folder(tmp_path / "first")
    save(first, 10)
    save(first, 20)
    seen = set()
    for at in range(20):
        folder = files.Folder(tmp_path / f"{at}")
        shutil.copytree(first.path, folder.path)
        crashes[0] = at
        try:
            save(folder, 30)
        except Crash:
            crashes[0] = 10**9
            seen.add((at, newest(folder)))  # a broken one with a finished name would be warned of
            save(folder, 40)
            assert newest(folder) == 40
            assert [entry.step for entry in folder.entries()] in ([40, 30], [40, 20])
            assert not [name for name in os.listdir(folder.path) if name.startswith(".")]
        else:
            break
    assert {step for _, step in seen} == {20, 30}
    assert len(seen) == at >= 7


def damage(path):
    data = bytearray(path.read_bytes())
    data[data.index(b"x" * 1000) + 500] ^= 1
    path.write_bytes(data)


BREAKS = {
    "truncated": lambda path: os.truncate(path / "value.pt", 10),
    "one bit": lambda path: damage(path / "random-states.pt"),
    "empty": lambda path: os.truncate(path / "value.pt", 0),
    "file missing": lambda path: (path / "random-states.pt").unlink(),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_one_is_passed_over_by_name(folder, how):
    save(folder, 10)
    broken = save(folder, 20)
    BREAKS[how](broken.path)
    with pytest.warns(UserWarning, match=re.escape(str(broken.path))):
        assert newest(folder) == 10


def test_when_all_are_broken_it_is_an_error(folder):
    for step in (10, 20):
        BREAKS["one bit"](save(folder, step).path)
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="none of the 2"):
        newest(folder)


def test_what_is_not_ours_is_never_removed(folder):
    folder.path.mkdir()
    for name in ("step-00000001", "step-00000001-2", "step-7", "notes", ".step-00000003.tmp"):
        (folder.path / name).mkdir()
        (folder.path / name / "mine.txt").write_text("mine")
    (folder.path / "step-00000004").write_text("a file")
    before = sorted(os.listdir(folder.path))
    for step in (10, 20, 30):
        save(folder, step, keep=1)
    assert sorted(os.listdir(folder.path)) == sorted([*before, "step-00000030"])


def test_the_same_step_again_gets_a_second_name(folder):
    save(folder, 10, keep=3)
    assert save(folder, 10, keep=3).path.name == "step-00000010-2"
    assert [entry.path.name for entry in folder.entries()] == ["step-00000010-2"]
    assert newest(folder) == 10


def test_no_folder_is_no_checkpoint(folder):
    assert newest(folder) is None


def test_checksums_are_there_though_the_program_has_switched_them_off(folder):
    torch.serialization.set_crc32_options(False)
    try:
        save(folder, 10)
        assert not torch.serialization.get_crc32_options()
    finally:
        torch.serialization.set_crc32_options(True)
    assert newest(folder) == 10
