"""Values that leave the device and come back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from flatout_agent.watch.profile.flow.records import FlowNode, FlowReturn, FlowUses


class FlowReturns:
    """Tracks values of the models' and weights' device; does nothing if that is the host."""

    def __init__(self, models: Iterable[torch.nn.Module], weights: Iterable[torch.Tensor]) -> None:
        self.returns: list[FlowReturn] = []
        parameters = (parameter for model in models for parameter in model.parameters())
        self._accelerated = any(
            tensor.device.type != "cpu" for group in (parameters, weights) for tensor in group
        )

    def moved(self, node: FlowNode, uses: FlowUses, results: Sequence[torch.Tensor]) -> str | None:
        """The line where the value left the device, if it has; a return is recorded."""
        if not self._accelerated or not results or node.backward:
            return None
        on_host = results[0].device.type == "cpu"
        for tensor, state, written in uses.tensors:
            if written:
                continue
            if on_host and (tensor.device.type != "cpu" or state.away):
                return state.away or node.where
            if not on_host and tensor.device.type == "cpu" and state.away and tensor.dim():
                size = tensor.numel() * tensor.element_size()
                self.returns.append(FlowReturn(state.away, node.where, size, node.step))
        return None
