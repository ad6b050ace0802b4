from __future__ import annotations

from diagnosing.ceilings.benched import benched, cpu_row, findings, only, with_rows
from flatout.nouns.ceiling import Benched
from machines.healthy import changed, cpu_server

ID = "cpu-bf16-unused"


def giving(half: float, whole: float) -> Benched:
    rows = (
        cpu_row("matmul-cpu-bf16", half, "TFLOP/s"),
        cpu_row("matmul-cpu-fp32", whole, "TFLOP/s"),
    )
    return with_rows(benched(cpu_server()), *rows)


def test_amx_without_a_gain() -> None:
    machine = changed(
        cpu_server(), cpu__amx_bf16=True, environment={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    )
    finding = only(ID, giving(1.5, 1.0), machine)
    assert finding.code == "HW038"
    assert "1.50x of float32, with AMX" in finding.title
    assert finding.cure.commands == ("unset ONEDNN_MAX_CPU_ISA",)


def test_silent_where_it_gains_or_the_cpu_has_none() -> None:
    amx = changed(cpu_server(), cpu__amx_bf16=True)
    assert findings(ID, giving(6.0, 1.0), amx) == ()
    avx = changed(cpu_server(), cpu__amx_bf16=False, cpu__avx512_bf16=True)
    assert findings(ID, giving(1.5, 1.0), avx) == ()
    assert len(findings(ID, giving(1.0, 1.0), avx)) == 1
    none = changed(cpu_server(), cpu__amx_bf16=False, cpu__avx512_bf16=False)
    assert findings(ID, giving(0.3, 1.0), none) == ()
