from __future__ import annotations

from diagnosing.machine.asking import findings, only
from flatout.nouns.finding import Severity
from machines.healthy import changed, cpu_server, workstation

ID = "cpu-without-bf16"
OLD = {"cpu__avx512_bf16": False, "cpu__amx_bf16": False, "cpu__name": "Intel Xeon E5-2680 v4"}


def test_an_old_server_without_gpu() -> None:
    finding = only(ID, changed(cpu_server(), **OLD))
    assert (finding.code, finding.severity) == ("HW013", Severity.NOTE)
    assert "Intel Xeon E5-2680 v4 (x86_64)" in finding.evidence
    assert "AVX2 and AVX512" in finding.evidence


def test_arm() -> None:
    arm = {"cpu__architecture": "aarch64", "cpu__arm_bf16": False, "cpu__avx2": False}
    finding = only(ID, changed(cpu_server(), cpu__avx512=False, **arm))
    assert "neither AVX2 nor AVX512" in finding.evidence


def test_silent_where_one_of_them_is_not_known() -> None:
    assert findings(ID, changed(cpu_server(), **{**OLD, "cpu__amx_bf16": None})) == ()
    assert findings(ID, changed(cpu_server(), **OLD, cpu__architecture=None)) == ()


def test_silent_with_a_gpu_or_where_gpus_are_not_known() -> None:
    assert findings(ID, changed(workstation(), **OLD)) == ()
    assert findings(ID, changed(cpu_server(), gpus=None, **OLD)) == ()
