"""The list of jobs: private, tolerant of damage, and about this very process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flatout.running.one import jobs
from flatout.running.one.ring import ticks_of
from flatout_agent.wire import job_list


@pytest.fixture
def own_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "list"
    monkeypatch.setattr(job_list, "folders", lambda: [folder])
    return folder


def test_an_entry_is_listed_until_it_is_removed(own_list: Path, tmp_path: Path) -> None:
    assert jobs.listed() == []
    entry = jobs.new_entry("train.py", tmp_path, ("compile",))
    job_list.write(entry)
    assert jobs.listed() == [entry]
    assert jobs.owner_alive(entry) is True
    assert Path(entry.rings).is_dir()
    ended = replace(entry, ended_s=1.0, exit_code=3)
    job_list.write(ended)
    assert jobs.listed() == [ended]
    jobs.clear(ended)
    assert not Path(entry.rings).exists()
    job_list.remove(ended)
    assert jobs.listed() == []


@pytest.mark.skipif(sys.platform == "win32", reason="rights")
def test_it_is_private(own_list: Path, tmp_path: Path) -> None:
    job_list.write(jobs.new_entry("train.py", tmp_path))
    assert own_list.stat().st_mode & 0o777 == 0o700
    own_list.chmod(0o777)  # somebody else may have written into it
    assert jobs.listed() == []


def test_damaged_entries_are_left_out(own_list: Path, tmp_path: Path) -> None:
    entry = jobs.new_entry("train.py", tmp_path)
    job_list.write(entry)
    (own_list / "a.json").write_text("{")
    (own_list / "b.json").write_text("[" * 100_000)
    (own_list / "c.json").write_text(json.dumps({"id": 5}))
    (own_list / "d.json").write_text("x" * (jobs.MOST_BYTES + 1))
    (own_list / "e.json").mkdir()
    (own_list / "f.rings").write_text("a file")
    assert jobs.listed() == [entry]
    jobs.new_entry("again.py", tmp_path)


def test_what_dead_jobs_have_left_goes_with_the_next(own_list: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    entry = jobs.new_entry("train.py", tmp_path)
    dead_rings = own_list / "dead.rings"
    dead_rings.mkdir()
    dead = replace(entry, id="dead", pid=int(done.stdout), rings=str(dead_rings), began_s=1.0)
    job_list.write(dead)
    assert jobs.owner_alive(dead) is False
    jobs.new_entry("train.py", tmp_path)
    assert not dead_rings.exists()
    assert jobs.listed() == []


def test_a_process_is_told_by_its_start_and_its_namespace(own_list: Path, tmp_path: Path) -> None:
    entry = jobs.new_entry("train.py", tmp_path)
    if ticks_of(os.getpid()):
        assert jobs.owner_alive(replace(entry, start_ticks=entry.start_ticks + 1)) is False
    assert jobs.owner_alive(replace(entry, pid_namespace=1)) is None


def test_folders_in_memory_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert job_list.folders()[0] == Path("/run/user/7/flatout")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert "flatout" in job_list.folders()[0].name
