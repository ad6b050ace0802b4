"""There is no GPU, and the processor computes bfloat16 only in emulation.

## What it sees

No accelerator at all, and a processor without bfloat16 instructions (AVX512_BF16 or AMX on x86,
BF16 on ARM).

## Why it matters

Mixed precision, which makes training on newer processors two to several times faster, is slower
than float32 here.

## Cure

Stay with float32. A machine with bfloat16 (Intel Sapphire Rapids, AMD Zen 4, AWS Graviton 3 and
newer) or any GPU is faster.

## References

- https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Cpu, Machine

CHECK = Check(code="HW013", severity=Severity.NOTE, since="0.2.0")
X86 = ("x86_64", "amd64")
ARM = ("aarch64", "arm64")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for a machine known to have no GPU and no bfloat16."""
    cpu = machine.cpu
    if machine.gpus is None or machine.gpus or not _lacks_bf16(cpu):
        return
    has = [name for name, there in (("AVX2", cpu.avx2), ("AVX512", cpu.avx512)) if there]
    yield Diagnosis(
        title=f"no GPU, and no bfloat16 in {cpu.name or 'the processor'}"[:100],
        evidence=f"{cpu.name or 'processor'} ({cpu.architecture}): no bfloat16 instructions; "
        f"has {' and '.join(has) or 'neither AVX2 nor AVX512'}; no accelerator found",
        cure=Cure("Train in float32: bfloat16 autocast would be slower on this processor."),
    )


def _lacks_bf16(cpu: Cpu) -> bool:
    architecture = (cpu.architecture or "").lower()
    if architecture in X86:
        return cpu.avx512_bf16 is False and cpu.amx_bf16 is False
    return architecture in ARM and cpu.arm_bf16 is False
