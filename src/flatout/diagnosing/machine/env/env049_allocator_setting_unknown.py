"""The settings of torch's GPU allocator are malformed, unknown to this torch, or contradictory.

## What it sees

PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF and PYTORCH_HIP_ALLOC_CONF, read as torch reads them:
option:value, separated by commas.

## Why it matters

torch stops at its first use of the GPU with "Unrecognized CachingAllocator option" or "Error
parsing". `backend:cudaMallocAsync` ignores the options of torch's own allocator. With two
variables that differ, torch takes some options from the one and some from the other.

## Cure

Set one variable with options that this torch knows.

## References

- https://pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
- https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDAAllocatorConfig.h
- https://github.com/pytorch/pytorch/issues/123505
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV049", severity=Severity.ERROR, since="0.2.0")
NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
NEWEST_KNOWN = (2, 13)
"""The newest release whose options are known here."""
SINCE = {
    "max_split_size_mb": (1, 12),
    "roundup_power2_divisions": (1, 12),
    "garbage_collection_threshold": (1, 12),
    "backend": (2, 0),
    "expandable_segments": (2, 1),
}
"""The first release with each option, if known."""
OPTIONS = {
    *SINCE,
    "max_non_split_rounding_mb",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",
    "throw_on_cudamalloc_oom",
    "large_segment_size_mb",
}
VALUES = {
    "expandable_segments": r"True|False",
    "max_split_size_mb": r"[2-9]\d|\d{3,}",
    "garbage_collection_threshold": r"0?\.\d*[1-9]\d*",
    "backend": r"native|cudaMallocAsync|hipMallocAsync",
}


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the faults of all variables together."""
    torch = machine.torch
    if torch is None or not (software.cuda_of(torch) or software.rocm_of(torch)):
        return
    release = software.numbers(torch.version)
    values = {name: software.variable(machine, name) for name in NAMES}
    settings = {name: value for name, value in values.items() if value}
    fatal = [fault for value in settings.values() for fault in faults(value, release)]
    mild = [*_ignored(machine, settings, release), *_at_odds(settings)]
    if not fatal and not mild:
        return
    assignments = [f"{name}={value}" for name, value in settings.items()]
    place = target.of(machine)
    yield Diagnosis(
        title=software.shortened(f"{next(iter(settings))}: {[*fatal, *mild][0]}"),
        evidence="; ".join([*assignments, *fatal, *mild, software.label(torch)]),
        cure=Cure(
            "Unset them, then set one with options that this torch knows.",
            tuple(
                line for name in settings for line in system_packages.variable(place, name, None)
            ),
        ),
        severity=Severity.ERROR if fatal else Severity.WARNING,
    )


def faults(value: str, release: tuple[int, ...] | None) -> list[str]:
    """What this release of torch would reject, in words."""
    problems = []
    for part in re.split(r",(?![^\[]*\])", value.replace(" ", "")):
        option, colon, setting = part.partition(":")
        if not colon or not option or not setting:
            problems.append(f"'{part}' is not option:value")
        elif option not in OPTIONS:
            if release and release <= NEWEST_KNOWN:
                problems.append(f"no option '{option}'")
        elif release and release < SINCE.get(option, (0, 0)):
            problems.append(f"'{option}' needs torch {'.'.join(map(str, SINCE[option]))}")
        elif option in VALUES and not re.fullmatch(VALUES[option], setting):
            problems.append(f"'{setting}' is not a value of {option}")
    return problems


def _ignored(
    machine: Machine, settings: dict[str, str], release: tuple[int, ...] | None
) -> Iterator[str]:
    for value in settings.values():
        options = [part.partition(":")[0].strip() for part in value.split(",")]
        if "MallocAsync" in value and len(options) > 1:
            ignored = ", ".join(option for option in options if option != "backend")
            yield f"the MallocAsync backend ignores {ignored}"
        if "expandable_segments:True" in value and software.on(machine, "Windows"):
            yield "expandable_segments does nothing on Windows"
    if NAMES[0] in settings and release and release < (2, 8):
        yield f"this torch does not read {NAMES[0]}, but {NAMES[1]}"


def _at_odds(settings: dict[str, str]) -> Iterator[str]:
    if len({value.replace(" ", "") for value in settings.values()}) > 1:
        yield f"{' and '.join(settings)} differ"
