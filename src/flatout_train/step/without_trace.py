"""Run steps and restore everything that they change."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flatout_agent.speedups import nests
from flatout_train.checkpoint import random_states
from flatout_train.errors import UsageError
from flatout_train.out_of_memory import empty_cache
from flatout_train.step.ranks import Ranks

if TYPE_CHECKING:
    from flatout_train.step.train_step import TrainStep


@contextlib.contextmanager
def without_trace(step: TrainStep) -> Iterator[Ranks | None]:
    """Within it `step` may be called; afterwards it and everything it holds are restored.

    Weights, buffers and the optimizer's state are copied to host memory. The first two are written
    back into the same tensors, the last is loaded as from a checkpoint; gradients end as None. No
    graph is captured, and the ranks, which it yields, do not communicate. Raises UsageError for
    FSDP, whose communication cannot be disabled.
    """
    ranks = step._group.ranks
    if ranks is not None and not ranks.can_reduce:
        raise UsageError(
            "the layers of an FSDP model communicate in every pass, so no rank can try a size by "
            "itself: run find_batch_size with the model on one device"
        )
    snapshot = _Snapshot(step)
    try:
        step._graph_step, step._group.ranks = None, None
        with contextlib.nullcontext() if ranks is None else ranks.context(last=False):
            yield ranks
    finally:
        snapshot.restore()
        del snapshot
        gc.collect()
        empty_cache(step.device)


class _Snapshot:
    """The state of a step and its parts."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        state = step.state_dict()
        memo: dict[int, Any] = {}
        for tensor in nests.tensors(state):
            memo[id(tensor)] = _on_host(tensor)
        self._buffers = [
            (module._buffers, name, buffer, _on_host(buffer))
            for module in step.model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._state = copy.deepcopy(state, memo)
        parts = (step, step._group, step._passes, step._update, step._histories)
        self._fields = [(vars(part), _own(vars(part))) for part in parts]
        self._random = random_states.capture()

    @torch.no_grad()
    def restore(self) -> None:
        step = self._step
        step._update.look(wait=True)  # values in flight belong to the steps that are undone
        step.load_state_dict(self._state)
        for holder, name, buffer, content in self._buffers:
            holder[name] = buffer.copy_(content)
        for fields, before in self._fields:
            fields.update(before)
        random_states.restore(self._random)


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _own(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields; lists, dicts and deques as shallow copies."""
    return {
        name: copy.copy(value) if isinstance(value, list | dict | deque) else value
        for name, value in fields.items()
    }
