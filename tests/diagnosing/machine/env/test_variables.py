"""Environment variables that cost time or memory."""

from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.diagnosing.machine.env.env049_allocator_setting_unknown import faults
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed, cpu_server, h100, rocm, windows, workstation


def test_tensorflow_beside_torch_is_a_warning() -> None:
    finding = only("ENV042", broken("tensorflow-beside-torch"))
    assert finding.severity is Severity.WARNING
    assert "24 GiB" in finding.evidence
    assert "TF_FORCE_GPU_ALLOW_GROWTH=true" in commands(finding)
    assert "set_memory_growth" in finding.cure.text


def test_tensorflow_alone_is_a_note() -> None:
    assert (
        only("ENV042", broken("tensorflow-beside-torch", interpreter__torch=None)).severity
        is Severity.NOTE
    )


def test_nothing_once_it_grows_or_has_no_gpu() -> None:
    assert not findings(
        "ENV042",
        broken("tensorflow-beside-torch", environment={"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
    )
    assert findings(
        "ENV042",
        broken("tensorflow-beside-torch", environment={"TF_FORCE_GPU_ALLOW_GROWTH": "false"}),
    )
    assert not findings("ENV042", broken("tensorflow-beside-torch", environment=None))
    assert not findings("ENV042", broken("tensorflow-beside-torch", gpus=()))


def test_jax_beside_torch_is_a_warning() -> None:
    finding = only("ENV044", broken("jax-beside-torch"))
    assert finding.severity is Severity.WARNING
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in commands(finding)


def test_jax_alone_is_a_note() -> None:
    assert (
        only("ENV044", broken("jax-beside-torch", interpreter__torch=None)).severity
        is Severity.NOTE
    )


@pytest.mark.parametrize("name", ["XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_CLIENT_MEM_FRACTION"])
def test_nothing_once_it_is_chosen(name: str) -> None:
    assert not findings("ENV044", broken("jax-beside-torch", environment={name: ".4"}))


def test_nothing_where_the_environment_is_unknown() -> None:
    assert not findings("ENV044", broken("jax-beside-torch", environment=None))


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


def test_nothing_for_a_torch_that_has_no_compile() -> None:
    assert not findings(
        "ENV045", broken("compile-switched-off", interpreter__torch__version="1.13.1")
    )
    assert not findings("ENV045", broken("compile-switched-off", interpreter__torch=None))


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


def test_a_gpu_without_tf32_loses_nothing() -> None:
    assert not findings("ENV045", broken("tf32-forbidden", gpus__all__compute_capability=(7, 5)))
    assert not findings("ENV045", broken("tf32-forbidden", gpus__all__compute_capability=None))


def test_variables_of_several_purposes_are_told_apart() -> None:
    both = {"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0"}
    assert len(findings("ENV045", changed(workstation(), environment=both))) == 2


def test_other_values() -> None:
    assert not findings(
        "ENV045", broken("tf32-forbidden", environment={"NVIDIA_TF32_OVERRIDE": "1"})
    )
    assert not findings("ENV045", workstation())


def test_one_thread_on_a_cpu_server() -> None:
    finding = only("ENV047", broken("one-thread"))
    assert finding.severity is Severity.WARNING
    assert "64 cores" in finding.evidence
    assert "unset OMP_NUM_THREADS" in commands(finding)


def test_one_thread_beside_a_gpu_is_a_note() -> None:
    machine = changed(workstation(), environment={"OMP_NUM_THREADS": "1"})
    assert only("ENV047", machine).severity is Severity.NOTE


def test_more_threads_than_cores() -> None:
    finding = only("ENV047", broken("more-threads-than-cores"))
    assert finding.severity is Severity.WARNING
    assert "128: more threads than cores" in finding.title


def test_with_several_gpus_each_ones_share_counts() -> None:
    # 96 physical cores for 8 GPUs: 12 each
    assert not findings("ENV047", changed(a100(), environment={"OMP_NUM_THREADS": "4"}))
    assert findings("ENV047", changed(a100(), environment={"OMP_NUM_THREADS": "2"}))


@pytest.mark.parametrize("value", ["many", "0", ""])
def test_what_is_no_number(value: str) -> None:
    machine = changed(cpu_server(), environment={"MKL_NUM_THREADS": value})
    assert "not a number" in only("ENV047", machine).title


@pytest.mark.parametrize("value", ["32", "64", "16", "32,2"])
def test_sensible_values(value: str) -> None:
    assert not findings("ENV047", changed(cpu_server(), environment={"OMP_NUM_THREADS": value}))


def test_nothing_where_the_cores_are_not_known() -> None:
    assert not findings("ENV047", broken("one-thread", cpu__cores=None))


def with_settings(
    value: str, version: str = "2.9.1", name: str = "PYTORCH_CUDA_ALLOC_CONF"
) -> object:
    return changed(workstation(), environment={name: value}, interpreter__torch__version=version)


def test_a_misspelt_option() -> None:
    finding = only("ENV049", broken("allocator-misspelt"))
    assert finding.severity is Severity.ERROR
    assert "no option 'expandable_segment'" in finding.evidence
    assert "unset PYTORCH_CUDA_ALLOC_CONF" in commands(finding)


@pytest.mark.parametrize(
    "value",
    [
        "expandable_segments:True",
        "expandable_segments:True, max_split_size_mb:512",
        "max_split_size_mb:20,garbage_collection_threshold:0.8",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],garbage_collection_threshold:0.6",
        "backend:cudaMallocAsync",
        "pinned_use_background_threads:True",
    ],
)
def test_what_torch_accepts(value: str) -> None:
    assert faults(value, (2, 9)) == []


@pytest.mark.parametrize(
    "value",
    [
        "expandable_segments=True",
        "expandable_segments:true",
        "expandable_segments",
        "max_split_size_mb:10",
        "max_split_size_mb:512MB",
        "garbage_collection_threshold:1.5",
        "garbage_collection_threshold:0.0",
        "backend:async",
        "expandable_segments:True,",
        "C:\\temp",
    ],
)
def test_what_torch_refuses(value: str) -> None:
    assert faults(value, (2, 9))


def test_expandable_segments_came_with_2_1() -> None:
    finding = only("ENV049", with_settings("expandable_segments:True", "2.0.1"))
    assert "needs torch 2.1" in finding.evidence
    assert not findings("ENV049", with_settings("expandable_segments:True", "2.1.0"))


def test_of_a_release_newer_than_known_no_option_is_called_unknown() -> None:
    assert findings("ENV049", with_settings("new_option:1", "2.13.0"))
    assert not findings("ENV049", with_settings("new_option:1", "2.14.1"))


def test_what_is_ignored_is_a_warning() -> None:
    both = "backend:cudaMallocAsync,expandable_segments:True"
    finding = only("ENV049", with_settings(both))
    assert finding.severity is Severity.WARNING
    assert "ignores expandable_segments" in finding.title
    unread = with_settings("expandable_segments:True", "2.6.0", "PYTORCH_ALLOC_CONF")
    assert "does not read PYTORCH_ALLOC_CONF" in only("ENV049", unread).title
    on_windows = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert (
        "does nothing on Windows"
        in only("ENV049", changed(windows(), environment=on_windows)).title
    )


def test_two_variables_that_differ() -> None:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    differ = dict(zip(names, ("expandable_segments:True", "max_split_size_mb:512"), strict=True))
    finding = only("ENV049", changed(workstation(), environment=differ))
    assert finding.severity is Severity.WARNING
    assert "PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF differ" in finding.title
    same = dict.fromkeys(names, "max_split_size_mb:512")
    assert not findings("ENV049", changed(workstation(), environment=same))


def test_nothing_for_a_torch_for_cpu() -> None:
    variables = {"PYTORCH_CUDA_ALLOC_CONF": "nonsense"}
    assert not findings("ENV049", changed(cpu_server(), environment=variables))
