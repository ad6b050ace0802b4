"""After a CUDA graph that could not be recorded: stream, allocator and random numbers as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ENDS = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
"""One function of torch's, since 2.8 and before."""


def clean_up(
    current: torch.cuda.Stream,
    random: torch.Tensor,
    pools: list[Any],
    graph: torch.cuda.CUDAGraph | None = None,
) -> None:
    """Leave a failed capture on the current device.

    current: the stream before it. random: that device's random state then. pools: the memory pools
    that it recorded into. graph: the one that was being recorded, once its recording had begun;
    None where the caller does not have it: then a pool may stay taken that torch ended itself.

    Up to torch 2.12, ending a failed capture raises before the stream, the allocator and the
    generator leave it; then every later kernel, any dropout and any empty_cache() would fail. Newer
    ones do this themselves, and refuse to do it again.
    """
    import torch

    torch.cuda.set_stream(current)
    index = torch.cuda.current_device()
    if graph is None or not _is_recorded(graph):
        for pool in pools:
            _leave(index, pool, is_unfinished=graph is not None)
    fresh = torch.Generator(torch.device("cuda", index))
    fresh.set_state(random)
    torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state())


def _is_recorded(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether its capture came to a good end although the step failed: it frees its pool itself."""
    return _done(graph.pool)


def _leave(index: int, pool: Any, is_unfinished: bool) -> None:
    """Stop allocating from the pool, and remove the failed capture from its use count.

    A count too many keeps the memory until the process ends; one too few ends the process as soon
    as another graph of that pool is freed. So it is counted out only where that is sure: by the one
    who ended the capture, or for a graph that is known to have begun and not ended. (Before 2.8,
    `pool()` refuses too where only the last step failed, and then the graph counts itself out.)
    """
    import torch

    ended = any(_done(getattr(torch._C, name, None), index, pool) for name in _ENDS)
    version = _version()
    # a failed graph counts itself out since pytorch#190348, in AMD's builds from 2.11 on
    frees_itself = version >= ((2, 11) if torch.version.hip else (2, 14))
    if not frees_itself and (ended or (is_unfinished and version >= (2, 8))):
        _done(getattr(torch._C, "_cuda_releasePool", None), index, pool)


def _done(call: Callable[..., Any] | None, *args: Any) -> bool:
    """Whether torch has this function, and did what it is for."""
    if call is None:
        return False
    try:
        call(*args)
    except RuntimeError:
        return False
    return True


def _version() -> tuple[int, int]:
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
