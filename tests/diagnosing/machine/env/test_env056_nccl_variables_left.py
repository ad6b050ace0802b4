from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import changed, h100, workstation

CHECK = "nccl-variables-left"
NAME = "nvlink-switched-off"


def test_nvlink_is_lost() -> None:
    finding = only(CHECK, broken(NAME))
    assert "NCCL_P2P_DISABLE=1 switches off NVLink" in finding.evidence
    assert "unset NCCL_P2P_DISABLE" in commands(finding)


def test_infiniband_counts_with_active_ports() -> None:
    off = {"NCCL_IB_DISABLE": "1"}
    finding = only(CHECK, changed(h100(), environment=off))
    assert "8 active ports (3200 Gbit/s together)" in finding.evidence
    assert not findings(CHECK, changed(h100(), environment=off, network_ports=()))


def test_p2p_counts_where_there_is_a_direct_way() -> None:
    far = changed(broken(NAME), gpu_pairs__all__link="system")
    assert not findings(CHECK, far)
    assert "PCIe switch" in only(CHECK, changed(far, gpu_pairs__0__link="single")).evidence


def test_nothing_for_one_gpu_or_other_values() -> None:
    variables = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert not findings(CHECK, changed(workstation(), environment=variables))
    assert not findings(CHECK, changed(h100(), environment={"NCCL_P2P_DISABLE": "0"}))
