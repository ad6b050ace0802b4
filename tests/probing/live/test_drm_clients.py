"""Clients of GPUs' drivers: found seldom, read often, counted once, never a reason to fail."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.probing.live import drm_clients
from flatout.probing.live.drm_clients import DrmClients, DrmUse, EngineTime, from_fdinfo
from probing.live.intel_machine import ARC, OWN, IntelMachine, i915, xe
from probing.planted import GARBAGE

MIB = 2**20
DRIVERS = ("i915", "xe")


def by_pid(uses: tuple[DrmUse, ...]) -> dict[int, DrmUse]:
    assert len({use.pid for use in uses}) == len(uses)
    return {use.pid: use for use in uses}


def test_formats() -> None:
    facts = from_fdinfo(xe(7, computed=250, passed=1000, capacity=4))
    assert facts is not None
    assert (facts.driver, facts.address, facts.number) == ("xe", ARC, 7)
    assert facts.engines["ccs"] == EngineTime(250, 1000, 4)
    assert facts.engines["bcs"].capacity == 9
    assert facts.memory == {"system": 0, "gtt": 192 * 1024, "vram0": 512 * MIB}
    facts = from_fdinfo(i915(8, computed=5))
    assert facts is not None
    assert (facts.driver, facts.address, facts.number) == ("i915", OWN, 8)
    assert facts.engines["compute"] == EngineTime(5, None, 1)
    assert set(facts.engines) == {"render", "copy", "video", "compute"}
    assert facts.memory == {"system0": 64 * MIB, "stolen-system0": 8 * MIB}


def test_old_and_odd_formats() -> None:
    head = "drm-driver: i915\ndrm-pdev: 0000:00:02.0\ndrm-client-id: 1\n"
    facts = from_fdinfo(f"{head}drm-memory-vram0: 3 MiB\ndrm-total-vram1: 12\ndrm-engine-x: 5\n")
    assert facts is not None
    assert facts.memory == {"vram0": 3 * MIB, "vram1": 12}
    assert facts.engines == {"x": EngineTime(5, None, 1)}
    odd = "drm-cycles-rcs: 5\ndrm-engine-a: -5 ns\ndrm-engine-b: x\ndrm-total-vram0: 5 parsecs\n"
    facts = from_fdinfo(head + odd + "drm-engine-capacity-a: 0\n")
    assert facts is not None
    assert (facts.engines, facts.memory) == ({}, {})
    assert from_fdinfo("pos: 0\n") is None
    assert from_fdinfo(head.replace("pdev", "pdeV")) is None


def test_shares_of_time(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    clients = DrmClients(tmp_path, DRIVERS)
    machine.process(10, 1, {"5": i915(1)})
    machine.process(11, 1, {"5": xe(2, capacity=2)})
    first = by_pid(clients.uses(100.0))
    assert [use.busy for use in first.values()] == [{}, {}]
    assert first[10].used == {"copy"}
    machine.process(10, 1, {"5": i915(1, computed=500_000_000, memory="1 MiB")})
    machine.process(11, 1, {"5": xe(2, computed=500_000, passed=2 * 10**6, capacity=2)})
    second = by_pid(clients.uses(102.0))
    assert second[10].busy["compute"] == pytest.approx(0.25)
    assert second[10].used == {"copy", "compute"}
    assert second[10].memory["system0"] == MIB
    assert second[11].busy["ccs"] == pytest.approx(0.25)
    assert by_pid(clients.uses(102.01)) == second  # too soon for another share


def test_a_clock_that_begins_again(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    clients = DrmClients(tmp_path, DRIVERS)
    shares = []
    for second, (computed, passed) in enumerate([(900, 1000), (10, 100), (60, 200)]):
        machine.process(10, 1, {"5": xe(1, computed=computed, passed=passed)})
        shares.append(by_pid(clients.uses(float(second)))[10].busy.get("ccs"))
    assert shares == [None, None, pytest.approx(0.5)]


def test_a_client_counts_once_for_the_oldest_process(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    twice = {"5": xe(1), "6": xe(1), "7": xe(1, address="0000:04:00.0")}
    machine.process(900, 50, twice)
    machine.process(30, 70, twice)  # a worker whose number is lower: numbers have begun again
    clients = DrmClients(tmp_path, DRIVERS)
    uses = clients.uses(0.0)
    assert sorted((use.pid, use.address) for use in uses) == [(900, ARC), (900, "0000:04:00.0")]


def test_what_is_found_and_what_has_gone(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    clients = DrmClients(tmp_path, DRIVERS)
    first = machine.process(10, 1, {"5": xe(1), "6": "drm-driver: nvidia-drm\n"})
    assert set(by_pid(clients.uses(0.0))) == {10}
    machine.process(11, 2, {"5": xe(2)})
    assert set(by_pid(clients.uses(9.0))) == {10}  # processes are looked through every ten seconds
    assert set(by_pid(clients.uses(10.0))) == {10, 11}
    (first / "fdinfo/5").write_text(xe(3))  # closed, and another one opened with its number
    assert set(by_pid(clients.uses(11.0))) == {11}
    (tmp_path / "proc/11/fdinfo/5").unlink()
    assert clients.uses(12.0) == ()
    assert set(by_pid(clients.uses(20.0))) == {10}


def test_a_large_machine_is_looked_through_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drm_clients, "MOST_FILES", 10)
    machine = IntelMachine(tmp_path)
    for pid in range(10, 16):
        machine.process(pid, pid, {"9": xe(pid)})  # four steps each: itself and three files
    clients = DrmClients(tmp_path, DRIVERS)
    found = [(len(clients.uses(float(second))), clients.complete) for second in range(3)]
    assert found == [(0, False), (0, False), (6, True)]


def test_processes_of_others_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = IntelMachine(tmp_path)
    machine.process(10, 1, {"5": xe(1)})
    machine.process(11, 1, {"5": xe(2)})
    listed = os.listdir

    def refused(folder: Any) -> list[str]:
        if "/proc/10/" in str(folder):
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(os, "listdir", refused)
    assert set(by_pid(DrmClients(tmp_path, DRIVERS).uses(0.0))) == {11}


def test_a_gpu_that_sleeps_is_not_asked(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    machine.process(10, 1, {"5": xe(1, computed=500, passed=1000)})
    clients = DrmClients(tmp_path, DRIVERS)
    clients.uses(0.0)
    machine.process(10, 1, {"5": xe(1, computed=1000, passed=2000, memory="1 MiB")})
    (use,) = clients.uses(1.0, asleep={ARC})
    assert use.memory["vram0"] == 512 * MIB  # as it was
    assert set(use.busy.values()) == {0.0}
    (use,) = clients.uses(2.0)
    assert use.busy["ccs"] == pytest.approx(0.5)


@given(text=st.one_of(GARBAGE, st.binary(max_size=80)), place=st.integers(0, 30))
def test_odd_files(text: bytes, place: int) -> None:
    lines = xe().encode().splitlines()
    lines[place % len(lines)] = lines[place % len(lines)].partition(b":")[0] + b": " + text
    with tempfile.TemporaryDirectory() as folder:
        machine = IntelMachine(Path(folder))
        machine.process(10, 1, {"5": ""})
        (Path(folder) / "proc/10/fdinfo/5").write_bytes(b"\n".join(lines))
        clients = DrmClients(Path(folder), DRIVERS)
        clients.uses(0.0)
        for use in clients.uses(1.0):
            assert all(0 <= share <= 1 for share in use.busy.values())
            assert all(size >= 0 for size in use.memory.values())
