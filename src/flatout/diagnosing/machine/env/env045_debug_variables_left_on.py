"""Environment variables meant for debugging are set, and cost time in every job.

## What it sees

Variables of CUDA, ROCm, NCCL, torch and TensorFlow that make calls wait, check every access, or
write a log. A GPU's variables count only if there is a GPU.

## Why it matters

CUDA_LAUNCH_BLOCKING=1 alone makes the host wait for every kernel: jobs with small kernels run at a
fraction of their speed. Such lines stay in a shell's start file long after the bug is fixed.

## Cure

Unset them, in this shell and where they are set.

## References

- https://pytorch.org/docs/stable/cuda_environment_variables.html
- https://pytorch.org/docs/stable/torch_environment_variables.html
- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from flatout.diagnosing import causes
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV045", severity=Severity.WARNING, since="0.2.0")
NUMBER = r"[1-9]\d*"
ANY = r".+"


@dataclass(frozen=True)
class Variable:
    """One variable, the values that cost time, and what they do."""

    name: str
    values: str
    cost: str
    vendor: str | None = None
    """The vendor whose GPUs it concerns, or None for all."""
    log_only: bool = False


VARIABLES = (
    Variable("CUDA_LAUNCH_BLOCKING", NUMBER, "the host waits for every kernel", "nvidia"),
    Variable("HIP_LAUNCH_BLOCKING", NUMBER, "the host waits for every kernel", "amd"),
    Variable("AMD_SERIALIZE_KERNEL", NUMBER, "kernels run one at a time", "amd"),
    Variable("AMD_SERIALIZE_COPY", NUMBER, "copies run one at a time", "amd"),
    Variable("AMD_LOG_LEVEL", NUMBER, "the ROCm runtime logs every call", "amd"),
    Variable("PYTORCH_NO_CUDA_MEMORY_CACHING", NUMBER, "each tensor calls cudaMalloc and cudaFree"),
    Variable("TORCH_CUDA_SANITIZER", ANY, "every kernel's memory accesses are checked", "nvidia"),
    Variable("PYTORCH_JIT", "0", "TorchScript functions run as plain Python"),
    Variable("TORCH_COMPILE_DEBUG", "1", "every compilation writes its debug files"),
    Variable("TORCH_DISTRIBUTED_DEBUG", "(?i)DETAIL", "every collective is checked across ranks"),
    Variable("NCCL_DEBUG", "(?i)TRACE", "NCCL writes a line for every call"),
    Variable("NCCL_DEBUG", "(?i)INFO", "NCCL writes hundreds of lines at start", log_only=True),
    Variable("TORCH_LOGS", ANY, "torch.compile writes its logs", log_only=True),
    Variable("TORCH_CPP_LOG_LEVEL", "(?i)INFO|0", "torch's C++ side writes its log", log_only=True),
    Variable("CUDNN_LOGLEVEL_DBG", NUMBER, "cuDNN writes a line for every call", "nvidia"),
    Variable("CUDNN_LOGINFO_DBG", "1", "cuDNN writes a line for every call", "nvidia"),
    Variable("CUBLAS_LOGINFO_DBG", "1", "cuBLAS writes a line for every call", "nvidia"),
    Variable("TF_CPP_MIN_VLOG_LEVEL", NUMBER, "TensorFlow writes verbose logs"),
    Variable("TF_CPP_MAX_VLOG_LEVEL", NUMBER, "TensorFlow writes verbose logs"),
)


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all of them; a note if they only write logs."""
    settings = [
        (variable, value)
        for variable in VARIABLES
        if (value := software.variable(machine, variable.name)) is not None
        and re.fullmatch(variable.values, value.strip())
        and (variable.vendor is None or machine.gpus_of(variable.vendor))
    ]
    if not settings:
        return
    place = target.of(machine)
    names = ", ".join(variable.name for variable, _ in settings)
    yield Diagnosis(
        title=software.shortened(f"left on from debugging: {names}"),
        evidence="; ".join(
            f"{variable.name}={value}: {variable.cost}" for variable, value in settings
        ),
        cure=Cure(
            causes.UNSET,
            tuple(
                line
                for variable, _ in settings
                for line in system_packages.variable(place, variable.name, None)
            ),
        ),
        severity=Severity.NOTE if all(variable.log_only for variable, _ in settings) else None,
    )
