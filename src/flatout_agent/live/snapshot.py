"""Weights, buffers and optimizer state of a sound step, kept in memory to go back to.

Other state of the program (a learning rate schedule, a loss scaler, averaged weights) is not
included: the program goes on from where it is, with the earlier weights.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from flatout_agent.limits import spare_memory

SHARE = 0.25
"""Share of the free memory that a snapshot may take from the program."""

_State = list[tuple[weakref.ref[torch.Tensor], dict[str, Any]]]
"""An optimizer's state: each parameter with a copy of the optimizer's state for it."""


class Snapshot:
    """The snapshot of a job; each `take` overwrites it."""

    def __init__(
        self, models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        self.models, self.optimizers = models, optimizers
        self.step: int | None = None
        """The step after which it was taken, or None without a snapshot."""
        self._weights: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []
        """Each tensor, which the program may drop, with its copy in host memory."""
        self._states: list[tuple[weakref.ref[torch.optim.Optimizer], _State]] = []
        """Each optimizer with a copy of its state, by parameter."""

    def fits(self) -> bool:
        """Whether a copy of everything takes little of the free memory."""
        if self.step is not None:
            return True  # it is overwritten
        plain = (torch.Tensor, torch.nn.Parameter)
        size, spare = 0, spare_memory()
        states = [values for optimizer in self.optimizers for values in optimizer.state.values()]
        kept = [v for values in states for v in values.values() if isinstance(v, torch.Tensor)]
        for tensor in [*self._model_tensors(), *kept]:
            if type(tensor) not in plain or tensor.layout is not torch.strided:
                return False  # a sharded or quantized one: its copy may need other ranks
            size += tensor.numel() * tensor.element_size()
        return spare is not None and size <= SHARE * spare

    def take(self, step: int) -> None:
        """Keep the present values, after this step."""
        self.step = None  # not whole until the end
        backups = {id(tensor()): backup for tensor, backup in self._weights if tensor() is not None}
        self._weights = []
        for tensor in self._model_tensors():
            backup = backups.get(id(tensor))
            if backup is not None and backup.shape == tensor.shape and backup.dtype == tensor.dtype:
                backup.copy_(tensor.detach())
            else:
                backup = tensor.detach().to("cpu", copy=True)
            self._weights.append((weakref.ref(tensor), backup))
        self._states = [
            (
                weakref.ref(optimizer),
                [(weakref.ref(p), self._copied(values)) for p, values in optimizer.state.items()],
            )
            for optimizer in self.optimizers
        ]
        self.step = step

    @property
    def whole(self) -> bool:
        """Whether it holds everything trained now: the program may have changed its model."""
        tensor_ids = {id(tensor()) for tensor, _ in self._weights if tensor() is not None}
        optimizers = [optimizer() for optimizer, _ in self._states]
        return (
            self.step is not None
            and all(id(tensor) in tensor_ids for tensor in self._model_tensors())
            and all(
                any(optimizer is owner for owner in optimizers) for optimizer in self.optimizers
            )
        )

    def put_back(self) -> None:
        """Restore everything."""
        with torch.no_grad():
            for reference, backup in self._weights:
                tensor = reference()
                if tensor is not None and tensor.shape == backup.shape:
                    tensor.copy_(backup)
            for owner, state in self._states:
                optimizer = owner()
                if optimizer is not None:
                    self._put_state(optimizer, state)

    def drop(self) -> None:
        """Free the memory."""
        self.step, self._weights, self._states = None, [], []

    def _model_tensors(self) -> Iterator[torch.Tensor]:
        """Weights and buffers of the models, and everything else that the optimizers update, each
        once.
        """
        tensors = [t for model in self.models for t in (*model.parameters(), *model.buffers())]
        for optimizer in self.optimizers:
            tensors += [p for group in optimizer.param_groups for p in group["params"]]
        yield from {id(tensor): tensor for tensor in tensors}.values()

    def _copied(self, values: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value.detach().to("cpu", copy=True)
            if isinstance(value, torch.Tensor)
            else copy.deepcopy(value)
            for name, value in values.items()
        }

    def _put_state(self, optimizer: torch.optim.Optimizer, state: _State) -> None:
        pairs = [(reference(), values) for reference, values in state]
        copies = {parameter: values for parameter, values in pairs if parameter is not None}
        for parameter in [p for p in optimizer.state if p not in copies]:
            del optimizer.state[parameter]
        for parameter, backups in copies.items():
            now = optimizer.state[parameter]
            for name in [name for name in now if name not in backups]:
                del now[name]
            for name, backup in backups.items():
                value = now.get(name)
                if not isinstance(backup, torch.Tensor):
                    now[name] = copy.deepcopy(backup)
                elif isinstance(value, torch.Tensor) and value.shape == backup.shape:
                    value.copy_(backup)  # the very tensor: a recorded graph may hold it
                else:
                    now[name] = backup.to(parameter.device, copy=True)
