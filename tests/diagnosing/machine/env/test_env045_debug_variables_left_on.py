from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import changed, cpu_server, rocm, workstation

CHECK = "debug-variables-left-on"


def test_each_with_what_it_costs() -> None:
    finding = only(CHECK, broken("left-on-from-debugging"))
    assert "CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel" in finding.evidence
    assert "unset CUDA_LAUNCH_BLOCKING" in commands(finding)
    assert "unset TORCH_LOGS" in commands(finding)
    assert finding.severity is Severity.WARNING


def test_logs_alone_are_a_note() -> None:
    machine = changed(workstation(), environment={"TORCH_LOGS": "recompiles"})
    assert only(CHECK, machine).severity is Severity.NOTE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("NCCL_DEBUG", "TRACE"),
        ("PYTORCH_JIT", "0"),
        ("TF_CPP_MIN_VLOG_LEVEL", "3"),
        ("TORCH_CUDA_SANITIZER", "1"),
    ],
)
def test_slow_ones_are_warnings(name: str, value: str) -> None:
    finding = only(CHECK, changed(workstation(), environment={name: value}))
    assert finding.severity is Severity.WARNING
    assert f"{name}={value}" in finding.evidence


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_DEBUG", "VERSION"),
        ("TORCH_DISTRIBUTED_DEBUG", "OFF"),
        ("PYTORCH_JIT", "1"),
        ("TORCH_LOGS", ""),
        ("AMD_LOG_LEVEL", "4"),
    ],
)
def test_harmless_values_and_other_vendors(name: str, value: str) -> None:
    assert not findings(CHECK, changed(workstation(), environment={name: value}))


def test_a_gpus_variable_counts_where_that_gpu_is() -> None:
    variables = {"CUDA_LAUNCH_BLOCKING": "1"}
    assert not findings(CHECK, changed(cpu_server(), environment=variables))
    assert findings(CHECK, changed(rocm(), environment={"AMD_LOG_LEVEL": "4"}))
