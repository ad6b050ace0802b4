"""Keep freed memory for the next step instead of giving it back to the system.

## What it does
On a CUDA device it turns on `expandable_segments` in PyTorch's caching allocator, through the
environment. On a CPU under Linux with glibc it tells `malloc` (`mallopt`) to serve large tensors
from its own heap and to keep that heap.

## Why it is faster
glibc requests each block over 32 MiB from the system anew and returns it as soon as it is freed, so
every step of a large model pays for a page fault and a cleared page per 4 KiB of activations. On
CUDA, sizes that change from step to step fragment the allocator's fixed segments; expandable
segments grow instead, which saves memory and calls to `cudaMalloc`.

## When it does nothing
On musl, macOS and Windows on a CPU; on ROCm and on Windows on a GPU, where segments cannot expand;
where the environment configures the allocator already (PYTORCH_CUDA_ALLOC_CONF with its own
`expandable_segments` or backend, GLIBC_TUNABLES, MALLOC_*, a preloaded malloc such as jemalloc).
Steps with small tensors gain nothing.

## What it may change
Results stay the same. The process's resident memory stays at its peak between steps. A CUDA tensor
shared with another process needs torch 2.4 or newer on both sides.

## How it is undone
glibc's documented defaults are set again (for the threshold that glibc adapts by itself, the
largest value it could have reached), and free memory is returned. What was set in the environment
(PYTORCH_ALLOC_CONF) ends with the process.

## References
- https://man7.org/linux/man-pages/man3/mallopt.3.html
- https://pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
- https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#switch-memory-allocator
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.EXACT,
    moment=Moment.START,
    params={"malloc": ("glibc-keep",)},
)
EXPAND = "expandable_segments:True"
CONF_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
# From malloc.h: parameter -> (what the boost sets, what undoing sets).
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4
MIB = 1 << 20
MALLOPT = {
    M_MMAP_MAX: (0, 65_536),
    M_MMAP_THRESHOLD: (32 * MIB, 32 * MIB),
    M_TRIM_THRESHOLD: (-1, 64 * MIB),
    M_TOP_PAD: (64 * MIB, 131_072),
}
PRELOADED = ("tcmalloc", "jemalloc", "mimalloc")
"""Other mallocs, which a program may have in place of glibc's."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why this allocator setting does not suit this job."""
    if facts.device == "cuda":
        return _why_not_cuda(facts)
    if facts.device != "cpu":
        return f"nothing to set for device {facts.device}"
    return _why_not_cpu(facts.system, os.environ)


def promise(facts: JobFacts, params: Params) -> float:
    """Small on CUDA with steady shapes; on a CPU it grows with the size of the activations."""
    if facts.device == "cuda":
        shapes = max((len(model.input_shapes) for model in facts.models), default=1)
        return 1.05 if shapes > 2 else 1.01
    return 1.1 if any(model.conv2d for model in facts.models) else 1.04


def environment(facts: JobFacts, params: Params) -> dict[str, str]:
    """Variables to set before the process starts; none if the boost does not apply."""
    if facts.device != "cuda" or applies(facts, params) is not None:
        return {}
    name = _conf_name(facts.torch, os.environ)
    setting = os.environ.get(name, "").strip(", ")
    return {name: f"{setting},{EXPAND}" if setting else EXPAND}


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Configure glibc's malloc, or check that what the environment asked for is in effect.

    CUDA is not initialized: the script may still choose its devices, and fork.
    """
    import torch

    conf = next((os.environ[name] for name in CONF_NAMES if name in os.environ), "")
    # `is_available` would initialize the driver; this asks NVML first.
    if EXPAND in conf.replace(" ", "") and torch.cuda.device_count() > 0:
        return Applied(lambda: None, _segments_expand)
    reason = _why_not_cpu(sys.platform, os.environ)
    if reason is not None:
        raise Declined(reason)
    return _keep_heap()


def by_hand(facts: JobFacts, params: Params) -> str:
    """The shell line, or the call of mallopt, that does the same."""
    variables = environment(facts, params)
    if variables:
        return "\n".join(
            ["# in the shell, before Python starts"]
            + [f"#   export {name}={value}" for name, value in variables.items()]
        )
    calls = [f"libc.mallopt({key}, {values[0]})" for key, values in MALLOPT.items()]
    return "\n".join(
        [
            "# at the top of the script; Linux with glibc",
            "# M_MMAP_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD",
            "import ctypes",
            "libc = ctypes.CDLL(None)",
            *calls,
        ]
    )


def _why_not_cuda(facts: JobFacts) -> str | None:
    if facts.hip:
        return "ROCm's allocator cannot expand segments"
    if facts.system == "win32":
        return "segments cannot expand on Windows"
    for name in CONF_NAMES:
        for word in ("expandable_segments", "backend:"):
            if word in os.environ.get(name, "").replace(" ", ""):
                return f"{name} sets {word.rstrip(':')} already"
    return None


def _why_not_cpu(system: str, environ: Mapping[str, str]) -> str | None:
    if system != "linux":
        return f"malloc cannot be set on {system}"
    for name in PRELOADED:
        if name in environ.get("LD_PRELOAD", ""):
            return f"LD_PRELOAD loads {name}"
    if not _glibc():
        return "the C library is not glibc"
    if "glibc.malloc" in environ.get("GLIBC_TUNABLES", ""):
        return "GLIBC_TUNABLES sets malloc already"
    for name in ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        if name in environ:
            return f"{name} is set already"
    return None


def _glibc() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (OSError, ValueError):  # musl does not know the name
        return False


def _conf_name(version: str, environ: Mapping[str, str]) -> str:
    """Since torch 2.9 the old name triggers a warning; if the user has set it, it stays in use."""
    for name in CONF_NAMES:
        if name in environ:
            return name
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return CONF_NAMES[0] if numbers >= [2, 9] else CONF_NAMES[1]


def _keep_heap() -> Applied:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        maps = ""
    if any(name in maps for name in PRELOADED):
        raise Declined("another malloc than glibc's is loaded")
    libc = ctypes.CDLL(None)
    refused = [key for key, (value, _) in MALLOPT.items() if libc.mallopt(key, value) != 1]

    def undo() -> None:
        for key, (_, default) in MALLOPT.items():
            libc.mallopt(key, default)
        libc.malloc_trim(0)

    if M_MMAP_MAX in refused or M_TRIM_THRESHOLD in refused:
        undo()
        raise Declined(f"mallopt refused parameters {refused}")
    return Applied(undo, lambda: (True, "glibc keeps freed memory"))


def _segments_expand() -> tuple[bool, str] | None:
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False, "the program did not use CUDA"
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    if not segments:
        return None
    if any(segment.get("is_expandable") for segment in segments):
        return True, "segments expand"
    return False, "the allocator made no expandable segment"
