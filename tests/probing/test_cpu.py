"""The processor's name on each system, and its cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.probing import cpu

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


def test_name_here() -> None:
    name = cpu.name()
    assert name is None or (name == name.strip() and "\n" not in name)


def test_cores_here() -> None:
    cores = cpu.cores()
    assert cores is not None
    assert 1 <= cores <= (os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="sets the affinity")
def test_cores_follow_the_affinity() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});" + (
        "from flatout.probing import cpu; print(cpu.cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
