import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from flatout_train.checkpoint import files
from flatout_train.checkpoint import reading as checkpoint_reading
from flatout_train.checkpoint import writing as checkpoint_writing
from flatout_train.checkpoint.ranks import CheckpointRanks
from flatout_train.errors import CheckpointError


class Crash(BaseException):
    """The machine stops here."""


class CrashingDisk(files.Filesystem):
    """Stops before, or right after, the n-th change; what is not flushed is lost."""

    def __init__(self, at, after, lost):
        self.at, self.after, self.lost = at, after, lost
        self.count = 0
        self.unsafe_names = []

    def _do(self, act, undo=lambda: None):
        self.count += 1
        if self.count == self.at and not self.after:
            self.crash()
        result = act()
        self.unsafe_names.append(undo)
        if self.count == self.at:
            self.crash()
        return result

    def crash(self):
        """What was not flushed may not have happened: none of it, or the first but not the rest."""
        lost = {"kept": [], "all lost": self.unsafe_names, "first lost": self.unsafe_names[:1]}
        for undo in reversed(lost[self.lost]):
            undo()
        raise Crash

    def make_folder(self, path):
        self._do(lambda: super(CrashingDisk, self).make_folder(path))

    def write(self, path, fill):
        def half(file):
            fill(file)
            file.flush()
            os.truncate(path, file.size // 2)
            self.crash()

        self.count += 1
        if self.count == self.at:
            if self.after:
                return super().write(path, half)
            self.crash()
        return super().write(path, fill)

    def flush_folder(self, path):
        self._do(lambda: super(CrashingDisk, self).flush_folder(path))
        self.unsafe_names.clear()

    def rename(self, path, target):
        def undo():
            if target.exists():
                target.rename(path)

        self._do(lambda: super(CrashingDisk, self).rename(path, target), undo)

    def remove(self, path):
        def half():
            for name in sorted(os.listdir(path))[::2]:
                os.unlink(path / name)

        self.count += 1
        if self.count == self.at:
            if self.after:
                half()
            self.crash()
        super().remove(path)


def save(folder, step, keep=2):
    facts = {"tracked": {"value": "int"}, "world_size": 1, "sharded": False}
    states = {"value": {"step": step}, "other": {"bytes": "x" * 1000}}
    staged = checkpoint_writing.Staged(step, states, {}, facts, lambda: None)
    return checkpoint_writing.write(staged, folder, CheckpointRanks(), keep, ())


def newest(folder):
    found = checkpoint_reading.newest(folder, CheckpointRanks())
    return found and checkpoint_reading.read(found, "value", 0)["step"]


@pytest.fixture
def folder(tmp_path):
    return files.Folder(tmp_path / "run")


def operations(folder):
    disk = CrashingDisk(at=0, after=False, lost="kept")
    save(files.Folder(folder.path, disk), 30)
    return disk.count


@pytest.mark.parametrize("lost", ["kept", "all lost", "first lost"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_operation_leaves_a_good_checkpoint(tmp_path, after, lost):
    first = files.Folder(tmp_path / "first")
    save(first, 10)
    save(first, 20)
    shutil.copytree(first.path, tmp_path / "count")
    count = operations(files.Folder(tmp_path / "count"))
    assert count >= 8
    seen = set()
    for at in range(1, count + 1):
        path = tmp_path / f"{at}"
        shutil.copytree(first.path, path)
        with pytest.raises(Crash):
            save(files.Folder(path, CrashingDisk(at, after, lost)), 30)
        files._mine.clear()  # the process that wrote is dead
        folder = files.Folder(path)
        seen.add(newest(folder))  # warnings are errors: no broken one may have a finished name
        save(folder, 40)
        assert newest(folder) == 40
        assert [entry.step for entry in folder.entries()] in ([40, 30], [40, 20])
        assert not [name for name in os.listdir(path) if name.startswith(".")]
    assert seen == {20, 30}


@pytest.mark.parametrize("lost", ["kept", "all lost", "first lost"])
def test_with_keep_1_and_the_same_step_again_there_is_always_one(tmp_path, lost):
    for at in range(1, 12):
        path = tmp_path / f"{at}"
        folder = files.Folder(path)
        save(folder, 10, keep=1)
        try:
            save(files.Folder(path, CrashingDisk(at, True, lost)), 10, keep=1)
        except Crash:
            files._mine.clear()
        assert newest(folder) == 10


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


BREAKS = {
    "truncated": lambda path: os.truncate(path / "value.pt", 10),
    "one bit": lambda path: damage(path / "value.pt"),
    "file missing": lambda path: (path / "other.pt").unlink(),
    "manifest missing": lambda path: (path / "manifest.json").unlink(),
    "manifest truncated": lambda path: os.truncate(path / "manifest.json", 40),
    "manifest empty": lambda path: os.truncate(path / "manifest.json", 0),
    "manifest changed": lambda path: damage(path / "manifest.json"),
    "manifest of other": lambda path: (path / "manifest.json").write_text("[1]"),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_one_is_passed_over_by_name(folder, how):
    save(folder, 10)
    broken = save(folder, 20)
    BREAKS[how](broken.path)
    with pytest.warns(UserWarning, match=re.escape(str(broken.path))):
        found = checkpoint_reading.newest(folder, CheckpointRanks())
    assert found.entry.step == 10
    assert found.broken == [broken.path]


def test_when_all_are_broken_it_is_an_error(folder):
    for step in (10, 20):
        BREAKS["one bit"](save(folder, step).path)
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="none of the 2"):
        newest(folder)


def test_a_newer_format_is_refused_by_its_name(folder):
    path = save(folder, 10).path / "manifest.json"
    path.write_text(path.read_text().replace("checkpoint/1", "checkpoint/7"))
    with pytest.raises(CheckpointError, match=r"flatout\.checkpoint/7"):
        newest(folder)


def test_keep_counts_good_ones_and_newer_ones_stay(folder):
    for step in (10, 20, 30, 40):
        entry = save(folder, step, keep=9)
    shutil.rmtree(folder.path / "step-00000040")
    broken = folder.path / "step-00000030"
    folder.prune(2, files.SavedCheckpoint(30, 1, broken), [broken])
    assert [each.step for each in folder.entries()] == [20, 10]
    assert entry.step == 40


def test_what_is_not_ours_is_never_removed(folder):
    folder.path.mkdir()
    for name in ("step-00000001", "step-00000001-2", "step-7", "notes", ".step-00000003.tmp"):
        (folder.path / name).mkdir()
        (folder.path / name / "mine.txt").write_text("mine")
    (folder.path / "step-00000004").write_text("a file")
    (folder.path / "step-00000002").mkdir()
    (folder.path / "step-00000002" / "manifest.json").write_text(json.dumps({"format": "other"}))
    before = sorted(os.listdir(folder.path))
    for step in (10, 20, 30):
        save(folder, step, keep=1)
    assert sorted(os.listdir(folder.path)) == sorted([*before, "step-00000030"])


def test_the_same_step_again_gets_a_second_name(folder):
    save(folder, 10, keep=3)
    assert save(folder, 10, keep=3).path.name == "step-00000010-2"
    assert [entry.path.name for entry in folder.entries()] == ["step-00000010-2"]
    assert newest(folder) == 10


def temporary(folder, host, pid, token="0123abcd", age=0.0):
    path = folder.path / f".step-00000005.{host}.{pid}.{token}.tmp"
    path.mkdir(parents=True)
    (path / "value.pt").write_text("half")
    for item in (path / "value.pt", path):
        os.utime(item, (item.stat().st_mtime - age,) * 2)
    return path


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(folder):
    here = socket.gethostname()
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    gone = [
        temporary(folder, here, int(dead.stdout)),
        temporary(folder, here, os.getpid()),  # an earlier process with our number
        temporary(folder, "elsewhere", 1, age=2 * files.STALE_S),
    ]
    stays = [
        temporary(folder, here, os.getppid()),
        temporary(folder, "elsewhere", 1, "89abcdef"),
        folder.begin(6),
    ]
    files.Folder(folder.path).begin(7)
    assert [path.exists() for path in gone] == [False] * 3
    assert [path.exists() for path in stays] == [True] * 3


def test_no_folder_is_no_checkpoint(folder):
    assert newest(folder) is None


class FullAfter:
    """A file on a disk that is full after so many bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)

    def flush(self):
        self.file.flush()


@pytest.mark.parametrize("room", [0, 100, 900, 1500])
def test_a_full_disk_is_told_by_name_and_the_older_one_stays(folder, monkeypatch, room):
    save(folder, 10)
    plain = files.Hashing.__init__
    monkeypatch.setattr(
        files.Hashing, "__init__", lambda own, file: plain(own, FullAfter(file, room))
    )
    with pytest.raises(CheckpointError, match=r"run \(No space left on device\): free some space"):
        save(folder, 20)
    assert os.listdir(folder.path) == ["step-00000010"]
    assert newest(folder) == 10
