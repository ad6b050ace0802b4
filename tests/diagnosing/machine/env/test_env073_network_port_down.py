from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines import broken_shared
from machines.healthy import changed, h100

ID = "network-port-down"


def test_one_of_eight_is_down() -> None:
    facts = {"network_ports__3__state": "down", "network_ports__3__rate_gbit_per_s": None}
    finding = only(ID, changed(h100(), **facts))
    assert (finding.code, finding.severity) == ("ENV073", Severity.WARNING)
    assert "mlx5_3/1: down; 7 of 8 ports active at 400 Gbit/s" in finding.evidence
    assert "ibstat mlx5_3" in commands(finding)
    assert "mlx5_3:1" not in commands(finding), "it is left out of NCCL_IB_HCA"


def test_a_slow_one_stands_out() -> None:
    finding = only(ID, changed(h100(), network_ports__7__rate_gbit_per_s=100.0))
    assert "mlx5_7/1: active at 100 Gbit/s" in finding.evidence


def test_a_port_in_ethernet_mode_does_not() -> None:
    facts = {"network_ports__7__rate_gbit_per_s": 25.0, "network_ports__7__link_layer": "ethernet"}
    assert findings(ID, changed(h100(), **facts)) == ()


def test_silent_where_none_is_in_use() -> None:
    assert findings(ID, changed(h100(), network_ports__all__state="down")) == ()


def test_a_port_beyond_one_for_each_gpu_is_a_note() -> None:
    finding = only(ID, broken_shared.node_with_spare_ports())
    assert finding.severity is Severity.NOTE
    assert "InfiniBand mlx5_11/1 is down" in finding.title
    assert "9 of 10 ports active" in finding.evidence
    assert "export NCCL_IB_HCA='=mlx5_0:1," in commands(finding)


def test_title_says_slow_and_the_count_leaves_it_out() -> None:
    finding = only(ID, changed(h100(), network_ports__7__rate_gbit_per_s=100.0))
    assert finding.title == "InfiniBand mlx5_7/1 is slow"
    assert "7 of 8 ports active at 400 Gbit/s" in finding.evidence
