from __future__ import annotations

from diagnosing.machine.asking import findings, only
from flatout.nouns.finding import Severity
from machines.healthy import GIB, changed, gpu, laptop, workstation

ID = "gpus-mixed"


def test_two_models() -> None:
    older = gpu(2, name="NVIDIA GeForce RTX 3060", memory_bytes=12 * GIB)
    finding = only(ID, changed(workstation(), gpus=(gpu(0), gpu(1), older)))
    assert (finding.code, finding.severity) == ("HW018", Severity.NOTE)
    assert "2 x NVIDIA GeForce RTX 4090 with 24 GiB" in finding.evidence
    assert "1 x NVIDIA GeForce RTX 3060 with 12 GiB" in finding.evidence
    assert "export CUDA_VISIBLE_DEVICES=0,1" in finding.cure.commands
    assert "export CUDA_DEVICE_ORDER=PCI_BUS_ID" in finding.cure.commands


def test_silent_for_the_graphics_of_the_processor() -> None:
    inside = gpu(1, name="NVIDIA Tegra", shared_memory=True)
    assert findings(ID, changed(workstation(), gpus=(gpu(0), inside))) == ()
    assert findings(ID, laptop()) == ()
