from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from flatout.nouns.machine import NetworkPort
from machines.healthy import changed, h100, workstation

ID = "peer-memory-module-missing"
LOADED = ("nvidia", "nvidia_uvm", "mlx5_core")


def test_with_the_proprietary_module_it_is_a_warning() -> None:
    facts = {"kernel__modules": LOADED, "drivers__0__open_kernel_module": False}
    finding = only(ID, changed(h100(), **facts))
    assert (finding.code, finding.severity) == ("ENV072", Severity.WARNING)
    assert "loaded: nvidia, nvidia_uvm, mlx5_core; NVIDIA's proprietary" in finding.evidence
    assert "sudo modprobe nvidia_peermem" in commands(finding)


def test_with_the_open_module_dma_buf_can_do_it() -> None:
    finding = only(ID, changed(h100(), kernel__modules=LOADED))
    assert finding.severity is Severity.NOTE
    assert "dma-buf" in finding.cure.text


def test_silent_with_either_module_no_port_or_a_consumer_card() -> None:
    assert findings(ID, changed(h100(), kernel__modules=(*LOADED, "nv_peer_mem"))) == ()
    without = {"kernel__modules": LOADED, "network_ports": ()}
    assert findings(ID, changed(h100(), **without)) == ()
    port = (NetworkPort("mlx5_0/1", "active", 100.0, "infiniband"),)
    assert findings(ID, changed(workstation(), network_ports=port)) == ()
