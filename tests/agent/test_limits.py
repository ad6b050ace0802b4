"""What control groups leave a process: other machines' /proc and /sys/fs/cgroup, planted."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given

from flatout_agent import limits, wire
from probing.planted import GARBAGE, plant

GIB = 2**30
NO_LIMIT_V1 = "9223372036854771712\n"
CPU, MEMORY = "sys/fs/cgroup/cpu,cpuacct/", "sys/fs/cgroup/memory/"
MEMINFO = "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:  4000 kB\n"


def machine(root: Path, membership: str, files: dict[str, str]) -> Path:
    return plant(root, {"proc/self/cgroup": membership, "proc/meminfo": MEMINFO, **files})


def v1_quota(folder: str, quota: str) -> dict[str, str]:
    return {f"{folder}cpu.cfs_quota_us": quota, f"{folder}cpu.cfs_period_us": "100000\n"}


QUOTAS: dict[str, tuple[str, dict[str, str], float | None]] = {
    "v2: the tightest group on the way up": (
        "0::/pod/job\n",
        {
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/job/cpu.max": "400000 100000\n",
        },
        1.5,
    ),
    "v1: only the slice above has a quota": (
        "4:cpu,cpuacct:/system.slice/job\n",
        {**v1_quota(CPU, "-1\n"), **v1_quota(f"{CPU}system.slice/", "150000\n")}
        | v1_quota(f"{CPU}system.slice/job/", "-1\n"),
        1.5,
    ),
    "v1 by the controller's own name": (
        "4:cpuacct,cpu:/a\n",
        v1_quota("sys/fs/cgroup/cpu/a/", "200000\n"),
        2.0,
    ),
    "v1 in a container: the path is the host's, the mount is the own group": (
        "4:cpu,cpuacct:/docker/abc\n",
        v1_quota(CPU, "200000\n"),
        2.0,
    ),
    "hybrid: the quota stands in version 1": (
        "4:cpu,cpuacct:/job\n0::/job\n",
        {**v1_quota(f"{CPU}job/", "200000\n"), "sys/fs/cgroup/unified/job/cgroup.procs": "1\n"},
        2.0,
    ),
    "hybrid: the controller was given to version 2": (
        "1:name=systemd:/job\n0::/job\n",
        {"sys/fs/cgroup/unified/job/cpu.max": "125000 100000\n"},
        1.25,
    ),
    "another controller's tree does not count": (
        "3:cpuset:/a\n",
        v1_quota("sys/fs/cgroup/cpuset/a/", "100000\n"),
        None,
    ),
    "v2: no quota": ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
    "v1: no quota": ("1:cpu:/\n", v1_quota("sys/fs/cgroup/cpu/", "-1\n"), None),
    "a period of 0": ("0::/\n", {"sys/fs/cgroup/cpu.max": "100000 0\n"}, None),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_cpu_quota(case: str, tmp_path: Path) -> None:
    membership, files, quota = QUOTAS[case]
    assert limits.cpu_quota(machine(tmp_path, membership, files)) == quota


def v1_memory(folder: str, limit: str, used: str = "0\n", stat: str = "") -> dict[str, str]:
    return {
        f"{folder}memory.limit_in_bytes": limit,
        f"{folder}memory.usage_in_bytes": used,
        f"{folder}memory.stat": stat,
    }


LIMITS: dict[str, tuple[str, dict[str, str], int | None]] = {
    "v2: only the slice above has a limit": (
        "0::/job/step\n",
        {
            "sys/fs/cgroup/job/memory.max": f"{GIB}\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
        },
        GIB,
    ),
    "v2: a group of another namespace": (
        "0::/../other\n",
        {"sys/fs/cgroup/memory.max": f"{GIB}\n"},
        GIB,
    ),
    "v1: only the slice above has a limit": (
        "4:memory:/slurm/job_1/step_0\n",
        {
            **v1_memory(f"{MEMORY}slurm/job_1/", f"{GIB}\n"),
            **v1_memory(f"{MEMORY}slurm/job_1/step_0/", NO_LIMIT_V1),
        },
        GIB,
    ),
    "v1 in a container: the group above is not mounted": (
        "4:memory:/kubepods/pod1/abc\n",
        v1_memory(MEMORY, NO_LIMIT_V1, stat=f"cache 1\nhierarchical_memory_limit {GIB}\n"),
        GIB,
    ),
    "another controller's tree does not count": (
        "4:cpu,cpuacct:/docker\n",
        v1_memory(MEMORY, f"{GIB}\n"),
        None,
    ),
    "v1: no limit": (
        "4:memory:/\n",
        v1_memory(MEMORY, NO_LIMIT_V1, stat=f"hierarchical_memory_limit {NO_LIMIT_V1}"),
        None,
    ),
    "v2: no limit": ("0::/job\n", {"sys/fs/cgroup/job/memory.max": "max\n"}, None),
    "a negative number": ("0::/job\n", {"sys/fs/cgroup/job/memory.max": "-1\n"}, None),
    "another script's digit": ("0::/job\n", {"sys/fs/cgroup/job/memory.max": "\u0663\n"}, None),
}


@pytest.mark.parametrize("case", LIMITS)
def test_memory_limit(case: str, tmp_path: Path) -> None:
    membership, files, limit = LIMITS[case]
    assert limits.memory_limit(machine(tmp_path, membership, files)) == limit


MOUNTED_PART = """\
27 1 8:2 / / rw shared:1 - ext4 /dev/sda2 rw
31 27 0:27 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw
32 27 0:28 /docker/abc /groups/cpu ro - cgroup cgroup rw,cpu,cpuacct
33 27 0:29 /x /groups/other ro - cgroup
"""


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/docker/abc/inner\n", {"sys/fs/cgroup/inner/cpu.max": "150000 100000\n"}, 1.5),
        ("3:cpu,cpuacct:/docker/abc/inner\n", v1_quota("groups/cpu/inner/", "75000\n"), 0.75),
    ],
)
def test_the_part_of_a_tree_that_a_container_sees(
    membership: str, files: dict[str, str], quota: float, tmp_path: Path
) -> None:
    root = machine(tmp_path, membership, {"proc/self/mountinfo": MOUNTED_PART, **files})
    assert limits.cpu_quota(root) == quota


AVAILABLE: dict[str, tuple[str, dict[str, str], int | None]] = {
    "no group": ("", {}, 4_096_000),
    "the machine does not tell": ("", {"proc/meminfo": "MemTotal: 9000 kB\n"}, None),
    "file pages that can be dropped are free": (
        "0::/job/step\n",
        {
            "sys/fs/cgroup/job/memory.max": "3000\n",
            "sys/fs/cgroup/job/memory.current": "2500\n",
            "sys/fs/cgroup/job/memory.stat": "anon 9\ninactive_file 100\n",
        },
        600,
    ),
    "no statistics": (
        "0::/\n",
        {"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.current": "2500\n"},
        500,
    ),
    "over the limit": (
        "0::/../job\n",
        {"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.current": "3500\n"},
        0,
    ),
    "v1": (
        "4:memory:/job\n2:cpu:/\n",
        v1_memory(f"{MEMORY}job/", "3000\n", "1000\n", "cache 1\n"),
        2000,
    ),
    "the group with the least left, not the one with the least limit": (
        "0::/a/b\n",
        {
            "sys/fs/cgroup/a/memory.max": "9000\n",
            "sys/fs/cgroup/a/memory.current": "8900\n",
            "sys/fs/cgroup/a/b/memory.max": "3000\n",
            "sys/fs/cgroup/a/b/memory.current": "1000\n",
        },
        100,
    ),
    "more than the machine has": (
        "0::/\n",
        {"sys/fs/cgroup/memory.max": f"{GIB}\n", "sys/fs/cgroup/memory.current": "0\n"},
        4_096_000,
    ),
}


@pytest.mark.parametrize("case", AVAILABLE)
def test_available_memory(case: str, tmp_path: Path) -> None:
    membership, files, available = AVAILABLE[case]
    assert limits.available_memory(machine(tmp_path, membership, files)) == available


def test_processes_share_the_spare_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert limits.spare_memory(machine(tmp_path, "", {})) == 1_024_000
    assert limits.spare_memory(tmp_path / "absent") is None


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without /proc."""
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("works", "free"), [(True, 3 * GIB), (False, None)])
def test_free_memory_on_windows(
    works: bool, free: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As documented for MEMORYSTATUSEX."""

    def global_memory_status(pointer: Any) -> int:
        status = bytes(pointer._obj)
        assert struct.unpack("<II", status[:8]) == (64, 0)
        sizes = (9 * GIB, 4 * GIB, 20 * GIB, 3 * GIB, 1, 1, 0)
        ctypes.memmove(ctypes.addressof(pointer._obj), struct.pack("<II7Q", 64, 50, *sizes), 64)
        return int(works)

    kernel = SimpleNamespace(GlobalMemoryStatusEx=global_memory_status)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    assert limits.available_memory() == free
    assert limits.spare_memory() == (free // 2 if free else None)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("lacks", [None, "vm.pagesize", "vm.page_purgeable_count"])
def test_free_memory_on_macos(lacks: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {
        b"vm.pagesize": struct.pack("<Q", 16384),
        b"vm.page_free_count": struct.pack("<I", 100_000),
        b"vm.page_purgeable_count": struct.pack("<I", 20_000),
        b"vm.page_pageable_external_count": struct.pack("<I", 3_000),
    }
    counts = {name: count for name, count in counts.items() if name.decode() != lacks}

    def sysctlbyname(name: bytes, value: Any, size: Any, new: None, new_size: Any) -> int:
        count = counts.get(name)
        if count is None:
            return -1
        ctypes.memmove(value, count, len(count))
        size._obj.value = len(count)
        return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda path: SimpleNamespace(sysctlbyname=sysctlbyname))
    assert limits.available_memory() == (None if lacks else 123_000 * 16384)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("system", ["win32", "darwin", "freebsd14"])
def test_free_memory_may_be_unknown(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(path: None) -> None:
        raise OSError("none")

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", no_library)
    monkeypatch.delattr(ctypes, "windll", raising=False)
    assert limits.available_memory() is None


@given(GARBAGE, GARBAGE, GARBAGE, GARBAGE)
def test_garbage_is_no_limit(meminfo: bytes, membership: bytes, mounts: bytes, own: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = {"proc/meminfo": meminfo, "proc/self/cgroup": membership}
        files |= {"proc/self/mountinfo": mounts, "sys/fs/cgroup/memory.max": own}
        root = plant(Path(folder), {**files, "sys/fs/cgroup/cpu.max": own})
        assert limits.cpu_quota(root) is None
        assert limits.memory_limit(root) is None
        assert limits.available_memory(root) is None
    assert limits.meminfo(Path(folder)) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/slice/job\n", {"sys/fs/cgroup/slice/cpu.max": "100000 100000\n"}),
        ("3:cpu,cpuacct:/slice/job\n", v1_quota(f"{CPU}slice/", "100000\n")),
    ],
)
def test_a_limited_slice_gives_its_limit_everywhere(
    membership: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.probing import cpu
    from flatout_train.loader import workers

    monkeypatch.setattr(limits, "ROOT", machine(tmp_path, membership, files))
    assert limits.usable_cores() == 1
    assert cpu.cpu().cores == 1
    assert cpu.cpu().quota_cores == 1.0
    assert workers.usable_cores() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("version", [1, 2])
def test_a_limited_slice_gives_its_memory_everywhere(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.probing import memory
    from flatout_programs.kernels.kernel import Setup

    membership = "0::/slice/job\n" if version == 2 else "4:memory:/slice/job\n"
    files = (
        v1_memory(f"{MEMORY}slice/", "3000000\n", "1000000\n")
        if version == 1
        else {
            "sys/fs/cgroup/slice/memory.max": "3000000\n",
            "sys/fs/cgroup/slice/memory.current": "1000000\n",
        }
    )
    monkeypatch.setattr(limits, "ROOT", machine(tmp_path, membership, files))
    assert memory.memory().limit_bytes == memory.usable_bytes() == 3_000_000
    assert limits.spare_memory() == 2_000_000
    assert Setup(None, quick=False).free_bytes("cpu") == 2_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_affinity_is_respected() -> None:
    if sys.platform == "linux":
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {next(iter(before))})
        try:
            assert limits.usable_cores() == 1
        finally:
            os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("text", "count"), [("4", 4), ("", 1), ("0", 1), ("many", 1)])
def test_local_processes(monkeypatch: pytest.MonkeyPatch, text: str, count: int) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
    assert limits.local_processes() == count
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setenv(wire.SIZE_ENV, text)
    assert limits.local_processes() == count
    monkeypatch.setenv(wire.LOCAL_SIZE_ENV, "2")  # the others are on other machines
    assert limits.local_processes() == 2
