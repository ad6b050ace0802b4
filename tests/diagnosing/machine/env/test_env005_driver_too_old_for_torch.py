from __future__ import annotations

from flatout.diagnosing.machine.env import env005_driver_too_old_for_torch as checked
from flatout.knowledge.compat import cuda
from machines import broken_driver
from machines.healthy import changed, driver, torch, workstation


def test_names_the_driver_and_both_ways() -> None:
    (found,) = checked.check(broken_driver.old_driver())
    needed = cuda.minimum_driver("12.8", "Linux")
    assert needed is not None
    assert "470.256.02" in found.title
    assert needed in found.title
    lines = found.cure.commands
    either = next(i for i, line in enumerate(lines) if line.startswith("# Either"))
    other = next(i for i, line in enumerate(lines) if line.startswith("# Or"))
    assert either < other
    assert any("nvidia-driver" in line for line in lines[either:other])
    assert any("cu118" in line and not line.startswith("#") for line in lines[other:])


def test_in_wsl_the_driver_is_that_of_windows() -> None:
    (found,) = checked.check(broken_driver.wsl_old_driver())
    needed = cuda.minimum_driver("12.8", "Windows")
    assert needed is not None
    assert f"Windows drivers from {needed}" in found.evidence


def test_minor_version_compatibility_is_no_problem() -> None:
    machine = changed(workstation(), drivers=(driver("535.183.01", "12.2"),))
    assert not list(checked.check(changed(machine, interpreter__torch__cuda_available=False)))


def test_silent_where_torch_has_its_gpu_or_is_not_for_cuda() -> None:
    old = broken_driver.old_driver()
    silent = [
        workstation(),
        changed(old, interpreter__torch__cuda_available=True),
        changed(old, interpreter__torch=torch("2.9.1", "cpu")),
        changed(old, interpreter__torch__cuda="99.9"),
        changed(old, interpreter=None),
        changed(old, drivers__0__version=None, drivers__0__kernel_version=None),
        changed(old, drivers__0__version="not a version", drivers__0__kernel_version=None),
        changed(old, drivers=None),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)


def test_a_gpu_that_newer_drivers_do_not_support_keeps_its_driver() -> None:
    kepler = changed(
        broken_driver.old_driver(),
        gpus__0__name="Tesla K80",
        gpus__0__compute_capability=(3, 7),
    )
    (found,) = checked.check(kepler)
    assert not any("nvidia-driver" in line for line in found.cure.commands)
    assert found.cure.commands
