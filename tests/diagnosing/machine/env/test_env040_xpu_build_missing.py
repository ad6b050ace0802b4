from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import changed, gpu, laptop, torch

CHECK = "xpu-build-missing"
NAME = "arc-with-cpu-torch"


def test_an_arc_card_gets_xpu() -> None:
    finding = only(CHECK, broken(NAME))
    assert "+xpu" in finding.evidence
    assert "/whl/xpu" in commands(finding)


def test_a_cuda_build_is_as_wrong() -> None:
    assert findings(CHECK, broken(NAME, interpreter__torch=torch(cuda_available=False)))


def test_an_integrated_arc_counts_by_its_name() -> None:
    integrated = {"gpus__0__name": "Intel Arc Graphics 140V", "gpus__0__shared_memory": True}
    assert findings(CHECK, broken(NAME, **integrated))


def test_a_laptop_with_nvidia_is_not_told_to_install_xpu() -> None:
    alone = changed(laptop(), gpus=laptop().gpus[1:], interpreter__torch=torch("2.9.1", "cpu"))
    assert not findings(CHECK, alone)  # Iris Xe is not supported
    beside = broken(NAME, gpus=(*broken(NAME).gpus, gpu()))
    assert not findings(CHECK, beside)


def test_nothing_once_it_is_there() -> None:
    xpu = torch("2.9.1", "xpu", xpu="20250201", xpu_available=True)
    assert not findings(CHECK, broken(NAME, interpreter__torch=xpu))
