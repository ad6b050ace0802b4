"""Makes this process one of the ranks."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.attach.replacing import replaced
from flatout_agent.ranks import agreeing, going_on, reducer
from flatout_agent.ranks.group import RankGroup
from flatout_agent.ranks.refusal import Refused, guarding, losing
from flatout_agent.ranks.regions import Regions, fingerprint
from flatout_agent.tell.recorder import Recorder

CHECK_EVERY = 200
"""Backward passes between two checks that the ranks' weights are still equal."""
ONE_DEVICE = "flatout run -- torchrun --nproc-per-node {size} ... starts it as it is written"
ONE_OF_SEVERAL = "start it on each node as it is written: flatout run -- torchrun --nnodes ..."


class RankRuntime:
    """The state of the ranks in this process."""

    def __init__(self, orders: wire.RankOrders, recorder: Recorder) -> None:
        self.orders, self.recorder = orders, recorder
        self.guarded = guarding(recorder)
        self.group: RankGroup = self.guarded(RankGroup, orders, losing(recorder))
        self.reducer = reducer.Reducer(self.group)
        self.regions = Regions(self.group, self.reducer, self.guarded)
        self._backwards = 0
        self._steps = 0
        self._write_at = 2
        self._began: tuple[float, ...] | None = None

    def install(self) -> None:
        """Put everything in place, right after torch has been imported."""
        if self.orders.threads:
            torch.set_num_threads(self.orders.threads)
        reducer.watched(self.reducer, self._backward_guarded)
        self.regions.install()
        agreeing.offer(self.group)
        going_on.offer(self.regions)
        several = bool(self.orders.address)
        _one_device(self.guarded, ONE_OF_SEVERAL if several else ONE_DEVICE, self.orders.size)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.group.close)

    def _forked(self) -> None:
        """In a fork, cut nothing: a loader worker that computes with a model is no rank."""
        self.regions.leave()
        self.reducer.paused = True

    def _backward_guarded(self, action: Callable[..., Any], *args: Any) -> Any:
        result = self.guarded(action, *args)
        self._backwards += 1
        if self._backwards % CHECK_EVERY == 0:
            self.guarded(self._check_weights)
        return result

    def _check_weights(self) -> None:
        weights = self.reducer.parameters()
        # A dropped model may still exist in another rank until Python collects it.
        gone = torch.tensor([*(each is None for each in weights), False], dtype=torch.int32)
        self.group.max_(gone)
        shared = [each for each, flag in zip(weights, gone.tolist(), strict=False) if not flag]
        figures = [value for each in shared if each is not None for value in fingerprint(each)]
        if not self.group.equal(*figures):
            raise Refused("the weights of the ranks have drifted apart")

    def step(self) -> None:
        """A step of the job has ended: the second one is the first that is cut.

        A trial ends without warning, so findings are written now and then, at growing intervals.
        """
        self._steps += 1
        if self._steps == 2:
            self._began = self._spent()
        if self._steps == self._write_at:
            self._write_at *= 2
            self.recorder.write(self.seen())

    def _spent(self) -> tuple[float, ...]:
        return self.reducer.exchange_s, self.regions.region_s

    def seen(self) -> wire.RanksSeen:
        """How the ranks train together, so far."""
        regions = tuple(self.regions.seen.values())
        steps = max(1, self._steps - 2)
        began = self._began or self._spent()
        spent = [(now - then) / steps for now, then in zip(self._spent(), began, strict=True)]
        errors = [each.gradient_error for each in regions if each.gradient_error is not None]
        return wire.RanksSeen(
            size=self.orders.size,
            backend=self.group.backend,
            regions=regions,
            exchanged_bytes=self.reducer.last_bytes,
            exchange_s=spent[0],
            region_s=spent[1],
            steps=self._steps,
            gradient_error=max(errors, default=None),
        )


def _one_device(guarded: Callable[..., Any], next_step: str, size: int) -> None:
    """Refuse scripts that spread themselves over devices or processes."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        def refuse() -> None:
            raise Refused(
                "the script starts DistributedDataParallel or another group of processes itself",
                next_step.format(size=size),
            )

        return guarded(refuse)

    import torch.distributed as dist

    replaced(dist, "init_process_group", refused)
    if torch.cuda.is_available():
        replaced(torch.cuda, "device_count", lambda: 1)
    # Disable `nn.DataParallel`, which splits rows over devices as the ranks now do; its names
    # stay.
    parallel: Any = torch.nn.DataParallel
    original = parallel.__init__

    def __init__(self: Any, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        one = [torch.cuda.current_device()] if torch.cuda.is_available() else None
        original(self, module, one, *args[:0], dim=kwargs.get("dim", 0))

    replaced(parallel, "__init__", __init__)
