from __future__ import annotations

import pytest

from flatout.diagnosing.machine.env import env009_cuda_visible_devices_hides_all as checked
from machines.breaking import visible
from machines.healthy import changed, cpu_server, h100, windows, workstation


@pytest.mark.parametrize("value", ["", " ", "-1", "-1,0", "NoDevFiles", "none", '""'])
def test_values_that_hide_all(value: str) -> None:
    (found,) = checked.check(visible(workstation(), value))
    assert "hides the GPU" in found.title
    assert "NVIDIA GPUs here: 1" in found.evidence
    assert "unset CUDA_VISIBLE_DEVICES" in found.cure.commands


def test_says_how_many() -> None:
    (found,) = checked.check(visible(h100(), ""))
    assert "all 8 GPUs" in found.title


def test_powershell_on_windows() -> None:
    (found,) = checked.check(visible(windows(), "-1"))
    assert not any(line.startswith("unset") for line in found.cure.commands)


def test_silent_otherwise() -> None:
    silent = [
        workstation(),
        visible(workstation(), "0"),
        visible(workstation(), "0,-1"),
        visible(cpu_server(), ""),
        changed(workstation(), environment=None),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)
