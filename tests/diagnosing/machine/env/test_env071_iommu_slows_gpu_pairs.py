from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from flatout.nouns.gpu import GpuPair
from flatout.nouns.machine import Container
from machines.healthy import changed, gpu, h100, workstation

ID = "iommu-slows-gpu-pairs"
PAIR = {
    "gpus": (gpu(0), gpu(1)),
    "gpu_pairs": (GpuPair(0, 1, "hostbridge"),),
    "kernel__iommu": True,
}


def test_two_cards_without_nvlink() -> None:
    finding = only(ID, changed(workstation(), **PAIR))
    assert (finding.code, finding.severity) == ("ENV071", Severity.WARNING)
    assert "2 GPUs, pairs: 1 by hostbridge" in finding.evidence
    assert "iommu=pt" in commands(finding)
    assert "sudo update-grub" in commands(finding)


def test_each_distribution_has_its_own_commands() -> None:
    fedora = {"system__distribution": "fedora", "system__distribution_like": ()}
    assert "grubby" in commands(only(ID, changed(workstation(), **PAIR, **fedora)))
    sles = {"system__distribution": "sles", "system__distribution_like": ("suse",)}
    assert "grub2-mkconfig" in commands(only(ID, changed(workstation(), **PAIR, **sles)))


def test_silent_with_nvlink_one_gpu_or_without_iommu() -> None:
    assert findings(ID, changed(h100(), kernel__iommu=True)) == ()
    assert findings(ID, changed(workstation(), kernel__iommu=True)) == ()
    assert findings(ID, changed(workstation(), **{**PAIR, "kernel__iommu": False})) == ()


def test_silent_in_a_virtual_machine_or_container() -> None:
    inside = {**PAIR, "container": Container(virtual_machine="kvm")}
    assert findings(ID, changed(workstation(), **inside)) == ()
    boxed = {**PAIR, "container": Container(kind="docker")}
    assert findings(ID, changed(workstation(), **boxed)) == ()
