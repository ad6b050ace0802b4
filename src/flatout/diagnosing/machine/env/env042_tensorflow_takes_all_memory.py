"""TensorFlow takes nearly all memory of the GPU as soon as it first uses it.

## What it sees

A TensorFlow with CUDA beside an NVIDIA GPU, and no TF_FORCE_GPU_ALLOW_GROWTH. It is a warning where
torch for CUDA lives in the same environment, else a note: a program can also switch growth on
itself, which cannot be seen from outside.

## Why it matters

TensorFlow maps nearly all memory of every GPU that it sees. torch, JAX or a second process beside
it then stop with "CUDA out of memory" on an empty GPU.

## Cure

Set TF_FORCE_GPU_ALLOW_GROWTH=true, or call tf.config.experimental.set_memory_growth(gpu, True) for
each GPU before its first use. A program that only reads data with TensorFlow hides the GPUs:
tf.config.set_visible_devices([], "GPU").

## References

- https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV042", severity=Severity.WARNING, since="0.2.0")
VARIABLE = "TF_FORCE_GPU_ALLOW_GROWTH"


def check(machine: Machine) -> Iterator[Diagnosis]:
    """A warning beside torch, else a note."""
    flow = machine.interpreter.tensorflow if machine.interpreter else None
    gpus = machine.gpus_of("nvidia")
    if flow is None or not gpus or machine.environment is None:
        return
    uses_gpu = bool(flow.gpus_seen) or (flow.cuda_build is True and flow.cuda_libraries is True)
    if not uses_gpu or software.switched_on(software.variable(machine, VARIABLE)):
        return
    torch = machine.torch
    beside = torch is not None and software.cuda_of(torch) is not None
    memory = gpus[0].memory_bytes
    size = f" of {memory / 2**30:.0f} GiB" if memory else ""
    also = f"; {software.label(torch)} is in the same environment" if torch and beside else ""
    yield Diagnosis(
        title="TensorFlow takes all memory of the GPU at its first use",
        evidence=f"TensorFlow {flow.version or '?'} with CUDA, {software.gpu_name(gpus[0])}{size}, "
        f"{VARIABLE} is not set{also}",
        cure=Cure(
            "Let it grow as needed; or tf.config.experimental.set_memory_growth in the program.",
            system_packages.variable(target.of(machine), VARIABLE, "true"),
        ),
        severity=Severity.WARNING if beside else Severity.NOTE,
    )
