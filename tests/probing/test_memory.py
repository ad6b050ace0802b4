"""Memory: the machine's, and what its groups leave of it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from hypothesis import given

from flatout.nouns.machine import Memory
from flatout.probing import memory
from flatout_agent import limits
from probing.planted import GARBAGE, plant

GIB = 2**30


def test_the_smaller_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "memory_limit", lambda: 123)
    assert memory.usable_bytes() == 123
    monkeypatch.setattr(limits, "memory_limit", lambda: 2**63)
    assert memory.usable_bytes() == psutil.virtual_memory().total
    monkeypatch.setattr(limits, "memory_limit", lambda: None)
    assert memory.usable_bytes() == psutil.virtual_memory().total


def test_memory_that_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(13, "no")

    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    assert memory.usable_bytes() is None


MEMINFO = """MemTotal:       65671424 kB
MemFree:         1203456 kB
MemAvailable:   49253568 kB
SwapTotal:       8388604 kB
SwapFree:        6291456 kB
HugePages_Total:       0
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /proc, /sys and /dev."""
    monkeypatch.setattr(memory, "SHARED", tmp_path / "dev/shm")
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    return tmp_path


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@on_linux
def test_a_pod_with_a_limit(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{16 * GIB}\n",
    }
    plant(machine, files)
    size = os.statvfs_result((4096, 4096, 16384, 16000, 15000, 9, 9, 9, 0, 255))
    monkeypatch.setattr(memory.os, "statvfs", lambda path: size)
    assert memory.memory() == Memory(
        total_bytes=65671424 * 1024,
        available_bytes=49253568 * 1024,
        limit_bytes=16 * GIB,
        swap_total_bytes=8388604 * 1024,
        swap_used_bytes=(8388604 - 6291456) * 1024,
        shm_bytes=64 * 2**20,
        shm_free_bytes=15000 * 4096,
    )


@on_linux
def test_shared_memory_without_a_limit_has_no_size(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(memory.os, "statvfs", lambda path: size)
    assert (memory.memory().shm_bytes, memory.memory().shm_free_bytes) == (None, None)


@on_linux
def test_nothing_can_be_read(machine: Path) -> None:
    assert memory.memory() == Memory()


@on_linux
@given(GARBAGE, GARBAGE, GARBAGE)
def test_garbage_is_no_fact(meminfo: bytes, membership: bytes, limit: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        files = {
            "proc/meminfo": meminfo,
            "proc/self/cgroup": membership,
            "sys/fs/cgroup/memory.max": limit,
        }
        plant(Path(folder), files)
        patch.setattr(memory, "SHARED", Path(folder) / "dev/shm")
        patch.setattr(limits, "ROOT", Path(folder))
        found = memory.memory()
    assert found.limit_bytes is None or str(found.limit_bytes).encode() in limit
    assert Memory(limit_bytes=found.limit_bytes) == found


def test_here() -> None:
    found = memory.memory()
    assert found.total_bytes == psutil.virtual_memory().total
    assert found.swap_total_bytes == psutil.swap_memory().total
    assert found.available_bytes is not None
    assert 0 < found.available_bytes <= found.total_bytes
    if sys.platform == "linux" and os.path.ismount("/dev/shm"):
        assert found.shm_bytes == psutil.disk_usage("/dev/shm").total
