"""Fingerprints of the weights some steps ago: a weight that has changed since is trained."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from flatout_agent.watch.looks import look


class WeightLooks:
    """Fingerprints of the models' weights when this object is made."""

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        weights = {id(weight): weight for model in models for weight in model.parameters()}
        self._looks = {
            key: (weakref.ref(weight), look(weight)) for key, weight in weights.items()
        }  # fmt: skip

    def changed(self, weight: torch.Tensor) -> bool:
        """Whether a weight has changed; also False for an unknown one."""
        reference, before = self._looks.get(id(weight), (None, None))
        return reference is not None and reference() is weight and look(weight) != before
