from __future__ import annotations

from flatout.diagnosing.machine.env import env018_compute_mode_prohibited as checked
from machines import broken_driver
from machines.healthy import changed, h100, workstation


def test_prohibited() -> None:
    (found,) = checked.check(broken_driver.prohibited())
    assert "prohibited on 1 of 1" in found.title
    assert found.cure.commands == ("sudo nvidia-smi -i 0 -c DEFAULT",)


def test_only_the_closed_ones_are_opened() -> None:
    machine = changed(
        h100(), gpus__2__compute_mode="prohibited", gpus__5__compute_mode="prohibited"
    )
    (found,) = checked.check(machine)
    assert "2 of 8" in found.title
    assert found.cure.commands == ("sudo nvidia-smi -i 2,5 -c DEFAULT",)


def test_exclusive_and_taken() -> None:
    (found,) = checked.check(broken_driver.exclusive())
    assert "python3 (4711)" in found.evidence


def test_silent_where_the_gpu_is_free_or_not_known() -> None:
    silent = [
        workstation(),
        changed(broken_driver.exclusive(), gpus__0__processes=()),
        changed(broken_driver.exclusive(), gpus__0__processes=None),
        changed(broken_driver.prohibited(), gpus__0__compute_mode=None),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)
