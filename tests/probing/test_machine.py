"""The whole Machine: the bus and the drivers put together, and sources that fail or hang."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.nouns.gpu import Driver, Gpu
from flatout.probing import cpu, disk, interpreter, machine, nvidia
from flatout.probing.machine import look, merged
from machines.healthy import gpu
from probing.fake_packages import bare

LONG_S = 100.0
"""So long that no source is late, however busy the machine is."""
CARD = Gpu(
    vendor="nvidia",
    pci_address="0000:21:00.0",
    pci_id="10de:2684",
    kernel_driver="nvidia",
    pcie_width_max=16,
)
OTHER = dataclasses.replace(CARD, pci_address="0000:22:00.0")


NAMED = Gpu(vendor="nvidia", name="NVIDIA GeForce RTX 4090", pci_id="10de:2684")
"""An adapter of Windows: it has no address."""
INTEL = Gpu(vendor="intel", pci_address="0000:00:02.0")


def test_the_bus_completes_what_the_driver_tells() -> None:
    told = gpu(kernel_driver=None, pcie_width_max=8)
    (found,) = merged([told], [CARD], {"nvidia"}, partial=False)
    assert (found.kernel_driver, found.pcie_width_max, found.driver_sees) == ("nvidia", 8, True)


@pytest.mark.parametrize(
    ("told", "bus", "answering", "partial", "sees"),
    [
        # What an answering driver leaves out it does not see; of a silent one nothing is claimed.
        ([gpu()], [CARD, OTHER], {"nvidia"}, False, [True, False]),
        ([], [CARD], set(), False, [None]),
        # A container or a job is not told of the GPUs of others.
        ([gpu()], [CARD, OTHER], {"nvidia"}, True, [True]),
        ([], [CARD, OTHER], {"nvidia"}, True, [False, False]),
        ([gpu()], [CARD, INTEL], {"nvidia"}, True, [True, None]),
        ([gpu(0), gpu(1)], [NAMED, NAMED], {"nvidia"}, False, [True, True]),
    ],
)
def test_which_gpus_there_are(
    told: list[Gpu], bus: list[Gpu], answering: set[str], partial: bool, sees: list[bool | None]
) -> None:
    assert [item.driver_sees for item in merged(told, bus, answering, partial)] == sees


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Has no torch: to import it takes longer than all else."""
    return bare(tmp_path / "venv")


def fails() -> Any:
    raise RuntimeError("stale handle")


def test_a_source_that_fails_is_told_and_hurts_no_other(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "cpu", fails)
    monkeypatch.setattr(disk, "disks", fails)
    found = look(python, limit_s=LONG_S)
    assert sorted(found.unread) == [
        "cpu: RuntimeError: stale handle",
        "disks: RuntimeError: stale handle",
    ]
    assert found.disks is None
    assert found.cpu.cores is None
    assert found.memory.total_bytes
    assert found.interpreter.version == sys.version.split()[0]


@pytest.mark.slow
def test_a_source_that_hangs_is_not_awaited(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "disks", lambda: time.sleep(300))
    began = time.monotonic()
    found = look(python, limit_s=1.0)
    assert time.monotonic() - began < 120
    assert "disks: no answer in time" in found.unread


@pytest.mark.slow
def test_a_hanging_source_does_not_keep_the_program_from_ending(python: str) -> None:
    code = (
        "import sys, time; from flatout.probing import disk, machine;"
        "disk.disks = lambda: time.sleep(600); machine.look(sys.argv[1], limit_s=1.0)"
    )
    subprocess.run([sys.executable, "-c", code, python], check=True, timeout=120)


@pytest.mark.parametrize("ask", ["start", "cannot"])
def test_no_interpreter(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if ask == "start":
        monkeypatch.setattr(interpreter, "start", lambda python, deep: fails())
        found = look(sys.executable, limit_s=LONG_S)
        assert found.interpreter is None
        assert "python: RuntimeError: stale handle" in found.unread
    else:
        found = look("/no/such/python", limit_s=LONG_S)
        assert found.interpreter.error


def test_a_late_driver_is_told(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(vendor="nvidia", version="580.95.05")
    answer = nvidia.Nvidia(None, None, driver, "NVML did not answer within 8 s")
    monkeypatch.setattr(nvidia, "nvidia", lambda limit_s: answer)
    found = look(python, limit_s=LONG_S)
    assert "nvidia: NVML did not answer within 8 s" in found.unread
    assert found.driver("nvidia") == driver
    assert found.gpu_pairs is None


@pytest.mark.slow
def test_without_a_limit_of_the_callers_it_has_its_own(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow: Callable[..., Any] = lambda *args, **names: time.sleep(300)  # noqa: E731
    monkeypatch.setattr(machine.variables, "environment", slow)
    began = time.monotonic()
    look(python)
    assert time.monotonic() - began < 120  # and not 300


@pytest.mark.gpu
def test_the_real_one_on_a_gpu() -> None:
    import torch

    found = look(sys.executable, deep=True)
    assert found.unread == ()
    seen = [item for item in found.gpus_of("nvidia") if item.driver_sees]
    assert torch.cuda.get_device_name(0) in [item.name for item in seen]
    assert torch.cuda.get_device_capability(0) in [item.compute_capability for item in seen]
    said = found.torch
    assert said.cuda_available is True
    assert said.arch_list == tuple(torch.cuda.get_arch_list())
