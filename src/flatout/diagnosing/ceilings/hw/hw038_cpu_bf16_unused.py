"""The CPU multiplies bfloat16 natively, but torch gains nothing from it.

## What it sees

The CPU has AMX or AVX512_BF16, and a product of bfloat16 matrices is hardly faster than one of
float32 matrices (less than 1.2 times; AMX: less than twice).

## Why it matters

AMX multiplies bfloat16 several times as fast as float32, AVX512_BF16 twice. Training and inference
on the CPU under autocast leave that unused.

## Cure

A variable that caps the instruction set (ONEDNN_MAX_CPU_ISA, DNNL_MAX_CPU_ISA) or a torch that is
too old or built without oneDNN. In a virtual machine AMX may be switched off.

## References

- https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
- https://docs.pytorch.org/tutorials/recipes/amx.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW038", severity=Severity.NOTE, since="0.2.0")
LEAST = {"AMX": 2.0, "AVX512_BF16": 1.2}
CAPS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """At most one finding."""
    half = shortfalls.value(benched, "matmul-cpu-bf16")
    whole = shortfalls.value(benched, "matmul-cpu-fp32")
    has = "AMX" if machine.cpu.amx_bf16 else "AVX512_BF16" if machine.cpu.avx512_bf16 else None
    if half is None or not whole or has is None or half / whole >= LEAST[has]:
        return
    caps = [(name, value) for name in CAPS if (value := (machine.environment or {}).get(name))]
    settings = [f"{name}={value}" for name, value in caps]
    yield Diagnosis(
        title=f"bfloat16 on the CPU: {units.ratio(half / whole)} of float32, with {has}",
        evidence=f"bfloat16 {half * 1000:,.0f}, float32 {whole * 1000:,.0f} GFLOP/s; the CPU has "
        f"{has}; torch {benched.torch}{''.join(f'; {setting}' for setting in settings)}",
        cure=Cure(
            f"Take {', '.join(settings)} out of the environment."
            if caps
            else "Try a newer torch; in a virtual machine ask for the instruction set.",
            tuple(f"unset {name}" for name, _ in caps) if machine.system.name != "Windows" else (),
        ),
    )
