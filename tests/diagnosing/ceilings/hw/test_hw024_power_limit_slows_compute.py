from __future__ import annotations

from diagnosing.ceilings.benched import benched, codes, findings, giving, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed

ID = "power-limit-slows-compute"


def test_a_lowered_limit() -> None:
    facts = {"throttles": ("sw_power_cap",), "power_limit_w": 200.0, "power_w": 199.0}
    machine = changed(a100(), **{f"gpus__0__{name}": value for name, value in facts.items()})
    found = giving(benched(machine), "matmul-bf16", 0.4, ["cuda:0"])
    finding = only(ID, found, machine)
    assert (finding.code, finding.severity) == ("HW024", Severity.WARNING)
    assert "40% of its peak" in finding.title
    assert "limit 200 W, default 400 W" in finding.evidence
    assert finding.cure.commands == ("sudo nvidia-smi -i 0 -pl 400",)
    assert "HW028" not in codes(found, machine)


def test_the_cards_own_limit_is_a_note() -> None:
    machine = changed(a100(), gpus__all__throttles=("sw_power_cap",))
    told = findings(ID, giving(benched(machine), "matmul-bf16", 0.5), machine)
    assert len(told) == 8
    assert {item.severity for item in told} == {Severity.NOTE}
    assert {item.cure.commands for item in told} == {()}


def test_silent_where_the_cap_costs_little() -> None:
    machine = changed(a100(), gpus__all__throttles=("sw_power_cap",))
    assert findings(ID, benched(machine), machine) == ()
    assert findings(ID, giving(benched(a100()), "matmul-bf16", 0.3), a100()) == ()
