"""Environment variables that cost time or memory."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import commands, each, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed, cpu_server, h100, rocm, workstation


def test_each_with_what_it_costs() -> None:
    finding = only("ENV045", broken("left-on-from-debugging"))
    assert "CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel" in finding.evidence
    assert "unset CUDA_LAUNCH_BLOCKING" in commands(finding)
    assert "unset TORCH_LOGS" in commands(finding)
    assert finding.severity is Severity.WARNING


def test_logs_alone_are_a_note() -> None:
    machine = changed(workstation(), environment={"TORCH_LOGS": "recompiles"})
    assert only("ENV045", machine).severity is Severity.NOTE


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
    finding = only("ENV045", changed(workstation(), environment={name: value}))
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
    assert not findings("ENV045", changed(workstation(), environment={name: value}))


def test_a_gpus_variable_counts_where_that_gpu_is() -> None:
    variables = {"CUDA_LAUNCH_BLOCKING": "1"}
    assert not findings("ENV045", changed(cpu_server(), environment=variables))
    assert findings("ENV045", changed(rocm(), environment={"AMD_LOG_LEVEL": "4"}))


def test_both_variables_in_one_finding() -> None:
    both = {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
    text = commands(only("ENV045", broken("compile-switched-off", environment=both)))
    assert "unset TORCH_COMPILE_DISABLE" in text
    assert "unset TORCHDYNAMO_DISABLE" in text


def test_torch_reads_1_alone_as_yes() -> None:
    for value in ("0", "", "true"):
        machine = changed(workstation(), environment={"TORCH_COMPILE_DISABLE": value})
        assert not findings("ENV045", machine)


def test_nvlink_is_lost() -> None:
    finding = only("ENV045", broken("nvlink-switched-off"))
    assert "NCCL_P2P_DISABLE=1: switches off NVLink" in finding.evidence
    assert "unset NCCL_P2P_DISABLE" in commands(finding)


def test_infiniband_counts_with_active_ports() -> None:
    off = {"NCCL_IB_DISABLE": "1"}
    finding = only("ENV045", changed(h100(), environment=off))
    assert "8 active ports (3200 Gbit/s together)" in finding.evidence
    assert not findings("ENV045", changed(h100(), environment=off, network_ports=()))


def test_p2p_counts_where_there_is_a_direct_way() -> None:
    far = changed(broken("nvlink-switched-off"), gpu_pairs__all__link="system")
    assert not findings("ENV045", far)
    assert "PCIe switch" in only("ENV045", changed(far, gpu_pairs__0__link="single")).evidence


def test_nothing_for_one_gpu_or_other_values() -> None:
    variables = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert not findings("ENV045", changed(workstation(), environment=variables))
    assert not findings("ENV045", changed(h100(), environment={"NCCL_P2P_DISABLE": "0"}))


def test_tf32_forbidden_below_torch() -> None:
    finding = only("ENV045", broken("tf32-forbidden"))
    assert finding.severity is Severity.WARNING
    assert finding.title == "NVIDIA_TF32_OVERRIDE=0: float32 without tensor cores"
    assert "A100" in finding.evidence
    assert "unset NVIDIA_TF32_OVERRIDE" in commands(finding)


def test_tf32_forced_is_a_note() -> None:
    machine = changed(workstation(), environment={"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"})
    assert only("ENV045", machine).severity is Severity.NOTE


def test_variables_of_several_purposes_are_told_apart() -> None:
    both = {"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0"}
    assert len(findings("ENV045", changed(workstation(), environment=both))) == 2


def test_one_thread_on_a_cpu_server() -> None:
    finding = only("ENV045", broken("one-thread"))
    assert finding.severity is Severity.WARNING
    assert "64 cores" in finding.evidence
    assert "unset OMP_NUM_THREADS" in commands(finding)


def test_one_thread_beside_a_gpu_is_a_note() -> None:
    machine = changed(workstation(), environment={"OMP_NUM_THREADS": "1"})
    assert only("ENV045", machine).severity is Severity.NOTE


def test_more_threads_than_cores() -> None:
    finding = only("ENV045", broken("more-threads-than-cores"))
    assert finding.severity is Severity.WARNING
    assert "128: more threads than cores" in finding.title


def test_with_several_gpus_each_ones_share_counts() -> None:
    # 96 physical cores for 8 GPUs: 12 each
    assert not findings("ENV045", changed(a100(), environment={"OMP_NUM_THREADS": "4"}))
    assert findings("ENV045", changed(a100(), environment={"OMP_NUM_THREADS": "2"}))


@pytest.mark.parametrize("value", ["many", "0", ""])
def test_what_is_no_number(value: str) -> None:
    machine = changed(cpu_server(), environment={"MKL_NUM_THREADS": value})
    assert "not a number" in only("ENV045", machine).title


@pytest.mark.parametrize("value", ["32", "64", "16", "32,2"])
def test_sensible_values(value: str) -> None:
    assert not findings("ENV045", changed(cpu_server(), environment={"OMP_NUM_THREADS": value}))


SILENT: dict[str, list[Any]] = {
    "ENV045": [
        # nothing for a torch that has no compile
        broken("compile-switched-off", interpreter__torch__version="1.13.1"),
        broken("compile-switched-off", interpreter__torch=None),
        # a gpu without tf32 loses nothing
        broken("tf32-forbidden", gpus__all__compute_capability=(7, 5)),
        broken("tf32-forbidden", gpus__all__compute_capability=None),
        # other values
        broken("tf32-forbidden", environment={"NVIDIA_TF32_OVERRIDE": "1"}),
        # nothing where the cores are not known
        broken("one-thread", cpu__cores=None),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
