"""How much of this machine's measured ceilings a step reaches."""

from __future__ import annotations

import dataclasses

from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Profile

TENSOR_CORES = ("matmul-bf16", "matmul-fp16", "matmul-tf32")
PLAIN = ("matmul-fp32",)
CPU = ("matmul-cpu-bf16", "matmul-cpu-fp32")
MEMORY, MEMORY_CPU = ("copy-device", "triad-device"), ("memory-cpu",)
TERA, GIGA = 1e12, 1e9


def reached(profile: Profile) -> Profile:
    """The profile with MFU, shares of ceilings and busy cores filled in if known.

    MFU is relative to the device's highest measured matmul ceiling (without float8), whatever dtype
    the job computes in, so that it shows the loss from a slow dtype.
    """
    anatomy, watched = profile.anatomy, profile.seen
    flops = anatomy.flops if anatomy.flops is not None else watched.flops if watched else None
    ours = CPU if anatomy.device == "cpu" else (*TENSOR_CORES, *PLAIN)
    ceiling = _highest(profile, ours)
    parts = []
    for part in anatomy.parts:
        binding: tuple[str, ...]
        if anatomy.device == "cpu":
            binding = CPU if part.kind is Kind.MATMUL else ()
        else:
            binding = {Kind.TENSOR_CORES: TENSOR_CORES, Kind.MATMUL: PLAIN}.get(part.kind, ())
        memory = MEMORY_CPU if anatomy.device == "cpu" else MEMORY
        shares = (
            _share(part.flops, part.ms, _highest(profile, binding), TERA),
            _share(part.bytes, part.ms, _highest(profile, memory), GIGA),
        )
        # Only data in a cache exceeds the ceiling; memory then does not limit it.
        share = max((ratio for ratio in shares if ratio is not None and ratio <= 1), default=None)
        parts.append(part if share is None else dataclasses.replace(part, ceiling=share))
    filled = dataclasses.replace(
        anatomy,
        parts=tuple(parts),
        flops=flops,
        mfu=_share(flops, anatomy.step_ms, ceiling, TERA),
        cores=profile.job.cores if profile.job is not None else anatomy.cores,
        cores_busy=watched.main_cpu_s / watched.step_s
        if watched is not None and watched.main_cpu_s is not None and watched.step_s
        else anatomy.cores_busy,
    )
    return dataclasses.replace(profile, anatomy=filled)


def _highest(profile: Profile, ids: tuple[str, ...]) -> float | None:
    """The highest of these ceilings, or None if none was measured."""
    return max((value for name in ids if (value := profile.ceiling(name))), default=None)


def _share(amount: float | None, ms: float, ceiling: float | None, unit: float) -> float | None:
    return amount / (ms * 1e-3) / (ceiling * unit) if amount and ms > 0 and ceiling else None
