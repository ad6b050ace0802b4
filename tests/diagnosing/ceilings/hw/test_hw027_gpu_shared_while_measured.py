from __future__ import annotations

from diagnosing.ceilings.benched import benched, codes, findings, giving, only
from flatout.nouns.gpu import GpuProcess
from machines.healthy import a100, changed

ID = "gpu-shared-while-measured"


def test_another_program() -> None:
    machine = changed(a100(), gpus__3__processes=(GpuProcess(4711, "python", 30 * 2**30),))
    found = giving(benched(machine), "matmul-bf16", 0.4, ["cuda:3"])
    found = giving(found, "copy-device", 0.4, ["cuda:3"])
    finding = only(ID, found, machine)  # once, however much it costs
    assert finding.code == "HW027"
    assert "python (process 4711, 30 GiB)" in finding.evidence
    assert not {"HW028", "HW030"} & set(codes(found, machine))


def test_silent_where_it_takes_nothing() -> None:
    machine = changed(a100(), gpus__all__processes=(GpuProcess(4711, "python", 30 * 2**30),))
    assert findings(ID, benched(machine), machine) == ()
    small = changed(a100(), gpus__all__processes=(GpuProcess(1, "Xorg", 2**26),))
    assert findings(ID, giving(benched(small), "matmul-bf16", 0.4), small) == ()
