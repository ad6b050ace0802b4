from __future__ import annotations

import pytest

from flatout.diagnosing.machine.env import env010_cuda_visible_devices_unknown as checked
from flatout.nouns.finding import Severity
from machines.breaking import visible
from machines.healthy import a100, changed, h100, workstation


def test_what_stands_after_an_invalid_entry_is_lost() -> None:
    (found,) = checked.check(visible(h100(), "0,9,1"))
    assert found.severity is Severity.WARNING
    assert '"9": the last GPU is 7' in found.evidence
    assert found.evidence.endswith("seen by CUDA: 0")
    assert found.cure.commands == ("nvidia-smi -L", "export CUDA_VISIBLE_DEVICES=0,1")


@pytest.mark.parametrize(
    "value", ["8", "cuda:0", "all", "0,0", "0,00", "GPU-ffff", "MIG-1234", "MIG-GPU-ffff/1/0"]
)
def test_no_gpu_is_left(value: str) -> None:
    (found,) = checked.check(visible(h100(), value))
    assert found.severity is Severity.ERROR
    assert "CUDA sees no GPU" in found.title


@pytest.mark.parametrize("value", ["0", "7,6", " 1 , 2 ", "3gpu", "GPU-00000003", "gpu-00000003"])
def test_valid_values(value: str) -> None:
    assert not list(checked.check(visible(h100(), value)))


def test_the_start_of_a_uuid_must_mean_one_gpu() -> None:
    (found,) = checked.check(visible(h100(), "GPU-0000000"))
    assert "several UUIDs begin like it" in found.evidence


def test_mig_devices_are_not_judged_where_some_exist() -> None:
    sliced = changed(a100(), gpus__0__mig=True, gpus__0__mig_slices=("1g.10gb",))
    name = "MIG-6f2b5f3a-0000-5555-8888-123456789abc"
    assert not list(checked.check(visible(sliced, name)))
    assert len(list(checked.check(visible(a100(), name)))) == 1
    empty = changed(a100(), gpus__0__mig=True)
    assert len(list(checked.check(visible(empty, name)))) == 1


def test_silent_where_the_gpus_are_not_known() -> None:
    silent = [
        visible(workstation(), ""),
        visible(changed(workstation(), gpus=None), "3"),
        visible(changed(workstation(), gpus__0__driver_sees=None), "3"),
        visible(changed(workstation(), gpus__0__uuid=None), "GPU-ffff"),
        visible(changed(workstation(), gpus__0__mig=None), "MIG-ffff"),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)
