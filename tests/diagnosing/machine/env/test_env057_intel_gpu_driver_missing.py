from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import changed, gpu, laptop
from machines.software import arc

CHECK = "intel-gpu-driver-missing"
NAME = "arc-without-level-zero"


def test_the_user_side() -> None:
    finding = only(CHECK, broken(NAME))
    assert "kernel driver i915; torch.xpu sees no GPU" in finding.evidence
    assert "libze" in commands(finding)


def test_the_kernel_side() -> None:
    machine = arc(gpus__0__kernel_driver=None, kernel__modules=())
    assert "neither i915 nor xe is loaded" in only(CHECK, machine).evidence


def test_nothing_where_it_works_is_not_known_or_not_the_one_for_training() -> None:
    assert not findings(CHECK, broken(NAME, interpreter__torch__xpu_available=True))
    assert not findings(CHECK, broken(NAME, interpreter__torch__xpu_available=None))
    assert not findings(CHECK, arc(gpus__0__kernel_driver=None, kernel__modules=None))
    beside = changed(broken(NAME), gpus=(*broken(NAME).gpus, gpu()))
    assert not findings(CHECK, beside)
    assert not findings(CHECK, changed(laptop(), gpus__1__kernel_driver=None))
