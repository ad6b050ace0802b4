"""Environment variables are set that cost time, or change precision, in every job.

## What it sees

- Variables of CUDA, ROCm, NCCL, torch and TensorFlow for debugging, which make calls wait, check
  every access, or write a log (logs alone are a note).
- TORCH_COMPILE_DISABLE=1 or TORCHDYNAMO_DISABLE=1, with a torch that has torch.compile.
- More than one GPU, and NCCL_P2P_DISABLE=1 (if the GPUs have a direct path to each other),
  NCCL_SHM_DISABLE=1, or NCCL_IB_DISABLE=1 (with active InfiniBand ports).
- OMP_NUM_THREADS or MKL_NUM_THREADS far below, or above, the cores that this process may use; on a
  machine with several GPUs, each one's share of them.
- NVIDIA_TF32_OVERRIDE=0 on a GPU with TF32 (Ampere and newer), and as a note
  TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 there.

A GPU's variables count only if there is such a GPU.

## Why it matters

Such lines stay in a shell's start file long after their reason is gone. CUDA_LAUNCH_BLOCKING=1
alone makes the host wait for every kernel: jobs with small kernels run at a fraction of their
speed. With torch.compile switched off, `torch.compile(model)` returns the model as it is, without a
message.

NCCL's are work-arounds for hangs: without P2P and NVLink every gradient goes through main memory;
without InfiniBand it goes through TCP. All-reduce runs at a fraction of the bandwidth.

With one thread, operations on the processor (a whole training on CPU, or the data's preparation)
use one core. With more threads than cores they take turns, which is slower than fewer.

NVIDIA_TF32_OVERRIDE=0 switches TF32 off below torch: float32 matrix products and convolutions then
do without tensor cores, whatever the program sets. TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 does the
opposite: all float32 matrix products are rounded to TF32, even if the program asked for full
precision.

## Cure

Unset them, in this shell and where they are set. If a job then hangs in NCCL, the cause is the
network or the IOMMU. The program chooses its precision by torch.set_float32_matmul_precision.
Without a number of threads torch takes one for each physical core. torchrun sets 1 itself where it
is unset; there set cores divided by ranks.

## References

- https://pytorch.org/docs/stable/cuda_environment_variables.html
- https://pytorch.org/docs/stable/torch_environment_variables.html
- https://pytorch.org/docs/stable/torch.compiler_troubleshooting.html
- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
- https://docs.nvidia.com/cuda/cublas/#tensor-core-usage
- https://pytorch.org/docs/stable/notes/multiprocessing.html#cpu-in-multiprocessing
- https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flatout.diagnosing import causes
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV045", severity=Severity.WARNING, since="0.2.0")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
FAR_UNDER = 4
"""Fewer threads than the cores divided by this are called far too few."""
NUMBER = r"[1-9]\d*"
ANY = r".+"
YES = "(?i)1|true|yes|on|y"
DIRECT = {"internal": "the link on the board", "nvlink": "NVLink", "single": "the PCIe switch"}
"""Links on which two GPUs reach each other without the processor."""


@dataclass(frozen=True)
class Variable:
    """One variable, the values that matter, and what they do."""

    name: str
    values: str
    effect: str | Callable[[Machine], str | None]
    """A function says None where it has none."""
    vendor: str | None = None
    """The vendor whose GPUs it concerns, or None for all."""
    mild: bool = False
    """Alone it is a note."""

    def seen(self, machine: Machine) -> str | None:
        """The setting and its effect, or None if there is no such effect."""
        value = software.variable(machine, self.name)
        if value is None or not re.fullmatch(self.values, value.strip()):
            return None
        if self.vendor is not None and not machine.gpus_of(self.vendor):
            return None
        effect = self.effect if isinstance(self.effect, str) else self.effect(machine)
        return None if effect is None else f"{self.name}={value}: {effect}"


@dataclass(frozen=True)
class VariableGroup:
    """Variables that are set for one purpose: together they are one finding."""

    title: str
    cure: str
    variables: tuple[Variable, ...]


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all variables of one group, one for each number of threads."""
    place = target.of(machine)
    for group in GROUPS:
        seen = {
            variable: text
            for variable in group.variables
            if (text := variable.seen(machine)) is not None
        }
        names = tuple(variable.name for variable in seen)
        if names:
            yield Diagnosis(
                title=software.shortened(
                    group.title.format(names=", ".join(names), count=_count(machine))
                ),
                evidence="; ".join(seen.values()),
                cure=Cure(
                    group.cure,
                    tuple(
                        line
                        for name in names
                        for line in system_packages.variable(place, name, None)
                    ),
                ),
                severity=Severity.NOTE if all(variable.mild for variable in seen) else None,
            )
    yield from _threads(machine)


def _threads(machine: Machine) -> Iterator[Diagnosis]:
    """Too few threads is a note if a GPU does the work."""
    cores = machine.cpu.cores
    if cores is None or machine.gpus is None:
        return
    gpus = [gpu for vendor in ("nvidia", "amd") for gpu in software.capable(machine, vendor)]
    real = min(cores, machine.cpu.physical_cores or cores)
    share = max(1, real // max(1, len(gpus)))
    for name in THREADS:
        value = software.variable(machine, name)
        wrong = _wrong(value, cores, share) if value is not None else None
        if wrong is None:
            continue
        per_gpu = f", {share} for each of {len(gpus)} GPUs" if len(gpus) > 1 else ""
        ranks = f" With one rank for each GPU set {share}." if len(gpus) > 1 else ""
        few = wrong == "far fewer threads than cores"
        yield Diagnosis(
            title=f"{name}={value}: {wrong} ({cores})",
            evidence=f"{name}={value}; this process may use {cores} cores{per_gpu}",
            cure=Cure(
                f"Unset it: torch takes the physical cores by itself.{ranks}",
                system_packages.variable(target.of(machine), name, None),
            ),
            severity=Severity.NOTE if few and gpus else None,
        )


def _wrong(value: str, cores: int, share: int) -> str | None:
    first = value.partition(",")[0].strip()  # OpenMP allows one number for each level
    if not first.isdecimal() or int(first) == 0:
        return "not a number of threads"
    threads = int(first)
    if threads > cores:
        return "more threads than cores"
    return "far fewer threads than cores" if threads * FAR_UNDER < share else None


def _count(machine: Machine) -> int:
    return max(len(machine.gpus_of("nvidia")), len(machine.gpus_of("amd")))


def _compiles_nothing(machine: Machine) -> str | None:
    torch = machine.torch
    release = software.numbers(torch.version) if torch else None
    if torch is None or release is None or release < (2, 0):
        return None
    return f"{software.label(torch)} compiles nothing"


def _switches_off(machine: Machine, path: str) -> str | None:
    return f"switches off {path}" if path and _count(machine) > 1 else None


def _direct(machine: Machine) -> str | None:
    links = {pair.link for pair in machine.gpu_pairs or ()}
    names = [name for link, name in DIRECT.items() if link in links]
    return _switches_off(machine, ", ".join(names))


def _shared_memory(machine: Machine) -> str | None:
    return _switches_off(machine, "shared memory between the ranks of this machine")


def _infiniband(machine: Machine) -> str | None:
    active = [port for port in machine.network_ports or () if port.state == "active"]
    rate = sum(port.rate_gbit_per_s or 0 for port in active)
    ports = f"{len(active)} active ports ({rate:g} Gbit/s together)" if active else ""
    return _switches_off(machine, ports)


def _on_tf32(effect: str) -> Callable[[Machine], str | None]:
    """The effect where a GPU has TF32, with its name."""

    def told(machine: Machine) -> str | None:
        able = [
            software.gpu_name(gpu)
            for gpu in machine.gpus_of("nvidia")
            if gpu.compute_capability is not None and gpu.compute_capability >= (8, 0)
        ]
        return effect.format(gpu=able[0]) if able else None

    return told


FOR_DEBUGGING = (
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
    Variable("NCCL_DEBUG", "(?i)INFO", "NCCL writes hundreds of lines at start", mild=True),
    Variable("TORCH_LOGS", ANY, "torch.compile writes its logs", mild=True),
    Variable("TORCH_CPP_LOG_LEVEL", "(?i)INFO|0", "torch's C++ side writes its log", mild=True),
    Variable("CUDNN_LOGLEVEL_DBG", NUMBER, "cuDNN writes a line for every call", "nvidia"),
    Variable("CUDNN_LOGINFO_DBG", "1", "cuDNN writes a line for every call", "nvidia"),
    Variable("CUBLAS_LOGINFO_DBG", "1", "cuBLAS writes a line for every call", "nvidia"),
    Variable("TF_CPP_MIN_VLOG_LEVEL", NUMBER, "TensorFlow writes verbose logs"),
    Variable("TF_CPP_MAX_VLOG_LEVEL", NUMBER, "TensorFlow writes verbose logs"),
)
GROUPS = (
    VariableGroup("left on from debugging: {names}", causes.UNSET, FOR_DEBUGGING),
    VariableGroup(
        "torch.compile is switched off by {names}",
        "Unset it, or keep it if the job must not be compiled.",
        (
            Variable("TORCH_COMPILE_DISABLE", "1", _compiles_nothing),
            Variable("TORCHDYNAMO_DISABLE", "1", _compiles_nothing),
        ),
    ),
    VariableGroup(
        "{names} slows down {count} GPUs",
        "Unset it and measure again; if the job then hangs, look for that cause.",
        (
            Variable("NCCL_P2P_DISABLE", YES, _direct),
            Variable("NCCL_SHM_DISABLE", YES, _shared_memory),
            Variable("NCCL_IB_DISABLE", YES, _infiniband),
        ),
    ),
    VariableGroup(
        "{names}=0: float32 without tensor cores",
        "Unset it; the program decides by torch.set_float32_matmul_precision.",
        (Variable("NVIDIA_TF32_OVERRIDE", "0", _on_tf32("{gpu} has TF32 and does not use it")),),
    ),
    VariableGroup(
        "{names}=1: every float32 matrix product is rounded to TF32",
        "Unset it where float32 must be exact.",
        (
            Variable(
                "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
                "1",
                _on_tf32("overrides torch.set_float32_matmul_precision on {gpu}"),
                mild=True,
            ),
        ),
    ),
)
