from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flatout_agent.speedups import cores


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_version_2_takes_the_tightest_group_on_the_way_up(tmp_path: Path) -> None:
    _write(tmp_path / "self", "0::/pod/job\n")
    _write(tmp_path / "cg/cpu.max", "max 100000\n")
    _write(tmp_path / "cg/pod/cpu.max", "150000 100000\n")
    _write(tmp_path / "cg/pod/job/cpu.max", "400000 100000\n")
    assert cores.cgroup_quota(tmp_path / "self", tmp_path / "cg") == 1.5


def test_version_1_reads_quota_and_period(tmp_path: Path) -> None:
    _write(tmp_path / "self", "4:cpu,cpuacct:/docker/abc\n3:memory:/x\n")
    _write(tmp_path / "cg/cpu,cpuacct/cpu.cfs_quota_us", "300000\n")
    _write(tmp_path / "cg/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert cores.cgroup_quota(tmp_path / "self", tmp_path / "cg") == 3.0


@pytest.mark.parametrize("quota", ["-1", "max", ""])
def test_no_quota_is_none(tmp_path: Path, quota: str) -> None:
    _write(tmp_path / "self", "1:cpu:/\n0::/\n")
    _write(tmp_path / "cg/cpu/cpu.cfs_quota_us", quota)
    _write(tmp_path / "cg/cpu/cpu.cfs_period_us", "100000")
    _write(tmp_path / "cg/cpu.max", f"{quota} 100000")
    assert cores.cgroup_quota(tmp_path / "self", tmp_path / "cg") is None


def test_absent_files_are_none(tmp_path: Path) -> None:
    assert cores.cgroup_quota(tmp_path / "self", tmp_path) is None


def test_here_it_is_between_one_and_what_the_machine_has() -> None:
    assert 1 <= cores.usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_affinity_is_respected() -> None:
    if sys.platform == "linux":
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {next(iter(before))})
        try:
            assert cores.usable_cores() == 1
        finally:
            os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("text", "count"), [("4", 4), ("", 1), ("0", 1), ("many", 1)])
def test_local_processes(monkeypatch: pytest.MonkeyPatch, text: str, count: int) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
    assert cores.local_processes() == count
