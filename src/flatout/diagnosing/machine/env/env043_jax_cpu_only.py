"""JAX is installed without the plugin for the GPU in this machine.

## What it sees

jax and jaxlib on Linux beside an NVIDIA or AMD GPU, and none of their GPU plugins.

## Why it matters

`pip install jax` brings CPU only; JAX then says "An NVIDIA GPU may be present on this machine, but
a CUDA-enabled jaxlib is not installed. Falling back to cpu."

## Evidence

JAX's version, the GPU, and the plugins looked for.

## Cure

Install jax with the plugin for the driver: jax[cuda13] from driver 580 on, else jax[cuda12].

## References

- https://docs.jax.dev/en/latest/installation.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import pytorch as wheels
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV043", severity=Severity.WARNING, since="0.2.0", hides=("ENV044",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding, on Linux, the only system with the plugins."""
    python = machine.interpreter
    jax = python.jax if python else None
    gpus = machine.gpus_of("nvidia") or software.capable(machine, "amd")
    if python is None or jax is None or python.packages is None or not gpus:
        return
    names = [package.name for package in python.packages]
    plugged = any(name.startswith(("jax-cuda", "jax-rocm")) for name in names)
    old = "cuda" in (jax.jaxlib or "")  # until 0.4.25 CUDA was part of jaxlib itself
    if plugged or jax.cuda_plugin or jax.rocm_plugin or old or not software.on(machine, "Linux"):
        return
    extra = "rocm" if gpus[0].vendor == "amd" else f"cuda{_cuda_major(machine)}"
    yield Diagnosis(
        title=f"JAX {jax.version or ''} is for CPU only; {software.gpu_name(gpus[0])} is idle",
        evidence=f"jax {jax.version or '?'}, jaxlib {jax.jaxlib or '?'}; no jax-cuda*-plugin and "
        "no jax-rocm*-plugin is installed",
        cure=Cure(
            f"Install jax[{extra}].",
            wheels.package_commands(software.pip_target(machine), install=(f"jax[{extra}]",)),
        ),
    )


def _cuda_major(machine: Machine) -> int:
    driver = machine.driver("nvidia")
    supports = software.numbers(driver.cuda, 1) if driver else None
    return 13 if supports and supports >= (13,) else 12
