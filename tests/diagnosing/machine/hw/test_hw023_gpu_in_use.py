from __future__ import annotations

from diagnosing.machine.asking import findings, only
from flatout.nouns.finding import Severity
from flatout.nouns.gpu import GpuProcess
from machines.healthy import GIB, a100, changed, container, rocm, workstation

ID = "gpu-in-use"


def test_a_busy_gpu_and_idle_ones() -> None:
    run = (GpuProcess(4711, "python", 30 * GIB),)
    facts = {"gpus__2__utilization": 0.98, "gpus__2__processes": run, "gpus__2__power_w": 390.0}
    finding = only(ID, changed(a100(), **facts))
    assert (finding.code, finding.severity) == ("HW023", Severity.WARNING)
    assert "A100-SXM4-80GB (GPU 2): load 98%, 390 W, python (4711)" in finding.evidence
    assert "export CUDA_VISIBLE_DEVICES=0,1,3,4,5,6,7" in finding.cure.commands


def test_from_a_container_programs_are_not_seen() -> None:
    finding = only(ID, changed(container(), gpus__0__utilization=0.9))
    assert "cannot be seen from here" in finding.evidence
    assert finding.cure.commands == ("nvidia-smi",)


def test_amd() -> None:
    finding = only(ID, changed(rocm(), gpus__0__utilization=0.9))
    assert finding.cure.commands[-1] == "export HIP_VISIBLE_DEVICES=1,2,3,4,5,6,7"


def test_a_little_load_is_the_desktop() -> None:
    assert findings(ID, changed(workstation(), gpus__0__utilization=0.12)) == ()


def test_an_idle_card_with_a_screen_looks_busy() -> None:
    desktop = {"gpus__0__display": True, "gpus__0__utilization": 0.45}
    assert findings(ID, changed(workstation(), **desktop)) == ()
    game = {"gpus__0__display": True, "gpus__0__utilization": 0.95}
    assert only(ID, changed(workstation(), **game))
