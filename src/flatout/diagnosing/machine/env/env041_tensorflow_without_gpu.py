"""TensorFlow cannot use the NVIDIA GPU here.

## What it sees

An NVIDIA GPU, and a TensorFlow that is the package for CPU, or runs on native Windows (where GPU
support ended with 2.10), or was built without CUDA, or finds no CUDA libraries: its wheel does not
bring them unless it is installed as tensorflow[and-cuda].

## Why it matters

`tf.config.list_physical_devices("GPU")` is empty, and TensorFlow runs on the processor with no more
than a line in its log.

## Evidence

Package, version, and the missing part.

## Cure

Install tensorflow[and-cuda]; on Windows use WSL2.

## References

- https://www.tensorflow.org/install/pip
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import pytorch as wheels
from flatout.knowledge.compat import tensorflow as releases
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.interpreter import Tensorflow
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV041", severity=Severity.WARNING, since="0.2.0", hides=("ENV042",))
CPU_PACKAGES = ("tensorflow-cpu", "intel-tensorflow")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the first reason."""
    flow = machine.interpreter.tensorflow if machine.interpreter else None
    gpus = machine.gpus_of("nvidia")
    if flow is None or not gpus or flow.gpus_seen or software.on(machine, "Darwin"):
        return
    reason = _windows(machine, flow) or _package(flow) or _libraries(machine, flow)
    if reason is None:
        return
    yield Diagnosis(
        title=f"TensorFlow {flow.version or ''} cannot use {software.gpu_name(gpus[0])}",
        evidence=f"{flow.package or 'tensorflow'} {flow.version or '?'}: {reason}",
        cure=_cure(machine, flow),
    )


def _windows(machine: Machine, flow: Tensorflow) -> str | None:
    if not software.on(machine, "Windows") or flow.version is None:
        return None
    release = releases.release(flow.version)
    if release is None or release.gpu_on_windows:
        return None
    return "since 2.11 there is no GPU support on native Windows"


def _package(flow: Tensorflow) -> str | None:
    if flow.package in CPU_PACKAGES:
        return f"{flow.package} is the package for CPU"
    return "it was built without CUDA" if flow.cuda_build is False else None


def _libraries(machine: Machine, flow: Tensorflow) -> str | None:
    if flow.gpus_seen == 0:
        return "it was asked and sees no GPU"
    if flow.cuda_libraries is not False or machine.libraries is None:
        return None
    if any(library.name == "cudnn" for library in machine.libraries):
        return None  # it may find a system-wide CUDA
    return "neither its nvidia-* packages nor a cuDNN of the system are there"


def _cure(machine: Machine, flow: Tensorflow) -> Cure:
    place = software.pip_target(machine)
    if place.system == "Windows":
        remark = "# in WSL: python3 -m pip install 'tensorflow[and-cuda]'"
        return Cure("Use it in WSL2, or torch on Windows.", ("wsl --install", remark))
    unwanted = (flow.package,) if flow.package in CPU_PACKAGES and flow.package else ()
    lines = wheels.package_commands(place, install=("tensorflow[and-cuda]",), remove=unwanted)
    return Cure("Install TensorFlow together with its CUDA libraries.", lines)
