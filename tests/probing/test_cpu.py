"""The processor's name on each system, and its cores."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.probing import cpu
from flatout_agent import limits
from probing.planted import plant

X86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC   9B45 \nprocessor\t: 1\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="reads /proc")
@pytest.mark.parametrize(("text", "name"), [(X86, "AMD EPYC 9B45"), (ARM, None), ("", None)])
def test_name_on_linux(
    text: str, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    assert cpu.name() == name


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(2, "no"), PermissionError(13, "no"), subprocess.TimeoutExpired("x", 5)],
)
def test_a_name_that_cannot_be_read_is_none(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise error

    monkeypatch.setattr(cpu, "_name", refuse)
    assert cpu.name() is None


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="sets the affinity")
def test_cores_follow_the_affinity() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});" + (
        "from flatout.probing import cpu; print(cpu.cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /sys")
def test_a_laptop_in_a_group_with_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "cpufreq/scaling_governor": "powersave\n",
        "cpufreq/scaling_driver": "intel_pstate\n",
        "proc/self/cgroup": "0::/pod\n",
        "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
    }
    plant(tmp_path, files)
    monkeypatch.setattr(cpu, "CPUFREQ", tmp_path / "cpufreq")
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    found = cpu.cpu()
    assert (found.governor, found.scaling_driver) == ("powersave", "intel_pstate")
    assert found.quota_cores == 2.5
    version_1 = {
        "proc/self/cgroup": "5:cpu,cpuacct:/kubepods/pod1\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    plant(tmp_path, version_1)
    assert cpu.cpu().quota_cores == 4.0


def test_nothing_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CPUINFO", "CPUFREQ"):
        monkeypatch.setattr(cpu, name, tmp_path / "absent")
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    monkeypatch.setattr(cpu.psutil, "cpu_count", lambda logical: None)
    found = cpu.cpu()
    assert (found.logical_cores, found.physical_cores, found.quota_cores) == (None, None, None)
    if sys.platform == "linux":
        assert found.name is None


def test_here() -> None:
    found = cpu.cpu()
    assert found.architecture == platform.machine()
    assert found.logical_cores == os.cpu_count()
    assert found.cores is not None
    assert found.physical_cores is None or found.physical_cores <= (found.logical_cores or 0)
    if sys.platform == "linux":
        assert found.affinity_cores == len(os.sched_getaffinity(0))
