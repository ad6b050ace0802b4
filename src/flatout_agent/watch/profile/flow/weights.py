"""What the weights were some steps ago: one that has changed since is trained."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from flatout_agent.watch.looks import look


class WeightLooks:
    """Of the models, when it is made."""

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        weights = {id(weight): weight for model in models for weight in model.parameters()}
        self._looks = {
            key: (weakref.ref(weight), look(weight)) for key, weight in weights.items()
        }  # fmt: skip

    def changed(self, weight: torch.Tensor) -> bool:
        """False as well for one that was not known."""
        reference, before = self._looks.get(id(weight), (None, None))
        return reference is not None and reference() is weight and look(weight) != before
