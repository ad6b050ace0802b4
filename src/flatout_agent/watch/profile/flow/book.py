"""The storages that hold the values of the followed steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from flatout_agent.watch.profile.flow.doubles import FlowDoubles
from flatout_agent.watch.profile.flow.records import FlowStorage, FlowUses, tensors
from flatout_agent.watch.profile.flow.schemas import OperatorSchema
from flatout_agent.watch.profile.storages import storage_key, storage_of, weak_storage


class StorageBook:
    """The storages by address, each with what is known about it."""

    def __init__(
        self,
        models: Iterable[torch.nn.Module],
        weights: Sequence[torch.Tensor],
        in_loader: Callable[[], bool],
        doubles: FlowDoubles,
    ) -> None:
        self.owned: dict[int, str] = {}
        """Storages of the models and weights: parameter or buffer."""
        self._states: dict[int, FlowStorage] = {}
        self._batch: dict[int, str] = {}
        self._frozen: set[int] = set()
        """The storages of parameters that nothing trains."""
        self._kept: list[StorageWeakRef] = []
        self._in_loader = in_loader
        self._doubles = doubles
        # Addresses are kept from being reused if the program replaces a weight.
        trained = {id(weight) for weight in weights}
        for weight in weights:
            self._owns(weight, "parameter")
        for model in models:
            for kind, members in (("parameter", model.parameters()), ("buffer", model.buffers())):
                for tensor in members:
                    key = self._owns(tensor, kind)
                    if key is not None and not (tensor.requires_grad or id(tensor) in trained):
                        self._frozen.add(key)

    def _owns(self, tensor: torch.Tensor, kind: str) -> int | None:
        key = storage_key(tensor)
        if key is not None:
            self.owned[key] = kind
            self._kept.append(weak_storage(tensor))
        return key

    def batch(self, path: str, tensor: torch.Tensor) -> None:
        """A loader has given a batch with this part."""
        key = storage_key(tensor)
        if key is None:
            return
        self._batch[key] = path
        state = self._states.get(key)
        if state is None:
            self._outside(tensor)
            return
        state.constant = False
        self._doubles.batch(state.wide, path)

    def known(self, tensor: torch.Tensor) -> FlowStorage | None:
        """The record of a tensor's storage, or None if nothing is known about it."""
        key = storage_key(tensor)
        return self._states.get(key) if key is not None else None

    def of(self, tensor: torch.Tensor) -> FlowStorage | None:
        """The record of a tensor's storage, or None if it has no storage."""
        key = storage_key(tensor)
        if key is None:
            return None
        state = self._states.get(key)
        return state if state is not None else self._outside(tensor)

    def uses(self, schema: OperatorSchema, args: Any, kwargs: dict[str, Any]) -> FlowUses:
        """The tensors that an operator takes."""
        uses = FlowUses()
        for position, value in (*enumerate(args), *kwargs.items()):
            for tensor in tensors(value):
                state = self.of(tensor)
                if state is None:
                    uses.unknown = True
                else:
                    uses.tensors.append((tensor, state, position in schema.written))
        return uses

    def knows(self, args: Any) -> bool:
        """Whether a view shares a known storage, so nothing more need be recorded."""
        for value in args:
            for tensor in tensors(value):
                key = storage_key(tensor)
                if key is None or key not in self._states:
                    return False
        return True

    def made(self, results: Iterable[torch.Tensor]) -> tuple[list[FlowStorage], bool]:
        """The new storages, and whether a result has no storage."""
        made, unknown = [], False
        for tensor in results:
            key = storage_key(tensor)
            if key is None:
                unknown = True
            elif key not in self._states:
                state = self._states[key] = FlowStorage(weak_storage(tensor))
                made.append(state)
        return made, unknown

    def _outside(self, tensor: torch.Tensor) -> FlowStorage:
        """A tensor that was made by no operator seen here."""
        key = storage_of(tensor)._cdata
        kind = self.owned.get(key)
        part = self._batch.get(key)
        state = self._states[key] = FlowStorage(weak_storage(tensor))
        loaded = part is not None or self._in_loader()
        trained = tensor.requires_grad or (kind == "parameter" and key not in self._frozen)
        state.constant = not (loaded or trained)
        state.signature = hash((key, "outside"))
        state.wide = self._doubles.before(tensor, "batch" if loaded else kind or "tensor", part)
        return state
