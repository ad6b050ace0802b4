"""Restores stream, allocator and random numbers after a CUDA graph could not be recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ENDS = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
"""One function of torch, under its name since 2.8 and before."""


def clean_up(
    current: torch.cuda.Stream,
    random: torch.Tensor,
    pools: list[Any],
    graph: torch.cuda.CUDAGraph | None = None,
) -> None:
    """Leave a failed capture on the current device.

    current: the stream before it. random: that device's random state before it. pools: the memory
    pools that it recorded into. graph: the graph being recorded, once its recording had begun, or
    None if the caller does not have it: a pool that torch itself ended may then stay taken.

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
    """Whether its capture ended well although the step failed; it then frees its pool itself."""
    return _done(graph.pool)


def _leave(index: int, pool: Any, is_unfinished: bool) -> None:
    """Stop allocating from the pool, and remove the failed capture from its use count.

    One count too many keeps the memory until the process ends. One too few ends the process as soon
    as another graph of that pool is freed. So the count is reduced only if that is certain: by
    whoever ended the capture, or for a graph that is known to have begun and not ended. (Before
    2.8, `pool()` also refuses if only the last step failed, and then the graph reduces the count
    itself.)
    """
    import torch

    ended = any(_done(getattr(torch._C, name, None), index, pool) for name in _ENDS)
    version = _version()
    # a failed graph reduces the count itself since pytorch#190348, in AMD's builds from 2.11 on
    frees_itself = version >= ((2, 11) if torch.version.hip else (2, 14))
    if not frees_itself and (ended or (is_unfinished and version >= (2, 8))):
        _done(getattr(torch._C, "_cuda_releasePool", None), index, pool)


def _done(call: Callable[..., Any] | None, *args: Any) -> bool:
    """Whether torch has this function and it succeeded."""
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
