"""After a CUDA graph that could not be recorded: stream, allocator and random numbers as before."""

from __future__ import annotations

import contextlib
from typing import Any


def clean_up(torch: Any, current: Any, random: Any, pools: list[Any]) -> None:
    """Leave a failed capture on the current device.

    current: the stream before it. random: that device's random state then. pools: the memory pools
    that it recorded into.

    Up to torch 2.12, ending a failed capture raises before the stream, the allocator and the
    generator leave it; then every later kernel, any dropout and any empty_cache() would fail. Newer
    ones do this themselves, and the calls below refuse.
    """
    torch.cuda.set_stream(current)
    index = torch.cuda.current_device()
    for pool in pools:
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)
    fresh = torch.Generator(torch.device("cuda", index))
    fresh.set_state(random)
    torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state())
