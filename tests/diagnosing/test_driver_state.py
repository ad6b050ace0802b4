from __future__ import annotations

import pytest

from flatout.diagnosing import driver_state
from machines import broken_driver, healthy
from machines.breaking import bus_only
from machines.healthy import driver


@pytest.mark.parametrize(
    ("number", "capability"),
    [
        ("10de:102d", (3, 0)),
        ("10de:17c2", (5, 0)),
        ("10de:1db1", (7, 0)),
        ("1002:1b80", None),
        (None, None),
    ],
)
def test_the_number_on_the_bus_tells_old_architectures(
    number: str | None, capability: tuple[int, int] | None
) -> None:
    assert driver_state.capability(bus_only(pci_id=number)) == capability


def test_what_the_driver_tells_comes_first() -> None:
    assert driver_state.capability(healthy.gpu(pci_id="10de:1b80")) == (8, 9)


def test_dropped_by_the_driver() -> None:
    old = bus_only(pci_id="10de:1b80")
    assert driver_state.dropped(old, driver("590.44.01")) == "580"
    assert driver_state.dropped(old, driver("580.95.05")) is None
    assert driver_state.dropped(old, None) is None
    assert driver_state.dropped(old, driver("?")) is None
    assert driver_state.dropped(healthy.gpu(), driver("590.44.01")) is None


def test_the_target_knows_an_old_gpu_by_its_number() -> None:
    target = driver_state.place(broken_driver.pascal_on_new_driver())
    assert target.compute_capability == (6, 0)
    assert driver_state.place(healthy.rocm()).compute_capability is None


def test_lines_for_the_host_are_remarks_in_a_container() -> None:
    lines = ("modprobe nvidia", "# look")
    outside = driver_state.place(healthy.workstation())
    assert driver_state.on_host(outside, lines) == lines
    inside = driver_state.place(healthy.container())
    assert driver_state.on_host(inside, lines)[1:] == ("# modprobe nvidia", "# look")


def test_repair_takes_the_packages_that_are_installed() -> None:
    ubuntu = driver_state.place(healthy.workstation())
    first = driver_state.repair(ubuntu)[0]
    assert first.startswith("sudo apt-get install --reinstall $(dpkg-query")
    assert "container" not in first
    windows = driver_state.place(healthy.windows())
    assert not any("apt" in line for line in driver_state.repair(windows))
