"""Environment variables that cost time or memory."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import Told, commands, each, each_of, findings, only, told
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed, cpu_server, h100, rocm, workstation


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


def test_both_variables_in_one_finding() -> None:
    both = {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
    text = commands(only("ENV045", broken("compile-switched-off", environment=both)))
    assert "unset TORCH_COMPILE_DISABLE" in text
    assert "unset TORCHDYNAMO_DISABLE" in text


def test_torch_reads_1_alone_as_yes() -> None:
    for value in ("0", "", "true"):
        machine = changed(workstation(), environment={"TORCH_COMPILE_DISABLE": value})
        assert not findings("ENV045", machine)


def test_p2p_counts_where_there_is_a_direct_way() -> None:
    far = changed(broken("nvlink-switched-off"), gpu_pairs__all__link="system")
    assert not findings("ENV045", far)
    assert "PCIe switch" in only("ENV045", changed(far, gpu_pairs__0__link="single")).evidence


def test_variables_of_several_purposes_are_told_apart() -> None:
    both = {"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0"}
    assert len(findings("ENV045", changed(workstation(), environment=both))) == 2


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


TOLD = [
    told("each with what it costs", "ENV045",
         broken("left-on-from-debugging"),
         "CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel", "unset CUDA_LAUNCH_BLOCKING",
         "unset TORCH_LOGS", severity=Severity.WARNING),
    told("logs alone are a note", "ENV045",
         changed(workstation(), environment={"TORCH_LOGS": "recompiles"}), severity=Severity.NOTE),
    told("nvlink is lost", "ENV045",
         broken("nvlink-switched-off"), "NCCL_P2P_DISABLE=1: switches off NVLink",
         "unset NCCL_P2P_DISABLE"),
    told("tf32 forbidden below torch", "ENV045",
         broken("tf32-forbidden"), "NVIDIA_TF32_OVERRIDE=0: float32 without tensor cores", "A100",
         "unset NVIDIA_TF32_OVERRIDE", severity=Severity.WARNING),
    told("tf32 forced is a note", "ENV045",
         changed(workstation(), environment={"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}),
         severity=Severity.NOTE),
    told("one thread on a cpu server", "ENV045",
         broken("one-thread"), "64 cores", "unset OMP_NUM_THREADS", severity=Severity.WARNING),
    told("one thread beside a gpu is a note", "ENV045",
         changed(workstation(), environment={"OMP_NUM_THREADS": "1"}), severity=Severity.NOTE),
    told("more threads than cores", "ENV045",
         broken("more-threads-than-cores"), "128: more threads than cores",
         severity=Severity.WARNING),
    told("a gpus variable counts where that gpu is", "ENV045",
         changed(rocm(), environment={"AMD_LOG_LEVEL": "4"})),
    told("infiniband counts with active ports", "ENV045",
         changed(h100(), environment={"NCCL_IB_DISABLE": "1"}),
         "8 active ports (3200 Gbit/s together)"),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: Told) -> None:
    case.holds()


SILENT: dict[str, list[Any]] = {
    "ENV045": [
        # infiniband counts with active ports
        changed(h100(), environment={"NCCL_IB_DISABLE": "1"}, network_ports=()),
        # a gpus variable counts where that gpu is
        changed(cpu_server(), environment={"CUDA_LAUNCH_BLOCKING": "1"}),
        # nothing for one gpu or other values
        changed(workstation(), environment={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}),
        changed(h100(), environment={"NCCL_P2P_DISABLE": "0"}),
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
