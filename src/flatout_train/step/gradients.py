"""The gradients of an optimizer's parameters: cleared, scaled, measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flatout_train.errors import UsageError


class Gradients:
    """The gradients of everything that one optimizer holds."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._own_zero_grad = type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad
        self.sparse = any(getattr(module, "sparse", False) is True for module in model.modules())
        """Some may be sparse: surely known after `settle`."""
        self._sizes: list[int] = []
        self.parameters: list[Tensor] = []
        self.plain = False
        """All are dense real tensors of one dtype on one device."""
        self._list()

    def _list(self) -> None:
        groups = self._optimizer.param_groups
        self._sizes = [len(group["params"]) for group in groups]
        self.parameters = [each for group in groups for each in group["params"]]
        kinds = {(each.device, each.dtype) for each in self.parameters}
        self.plain = (
            not self.sparse
            and len(kinds) == 1
            and not any(each.is_complex() for each in self.parameters)
            and all(_is_own(each) for each in self.parameters)
        )
        first = self.parameters[0]
        device = first.device if self.plain else torch.device("cpu")
        self._wide = first.dtype == torch.float64
        self._found = torch.zeros((), device=device)
        self._one = torch.ones((), device=device)

    def settle(self, expected: bool) -> None:
        """After the first backward pass: sparse gradients show only there.

        Raises UsageError where gradients are `expected` and there are none.
        """
        if expected and not any(each.grad is not None for each in self.parameters):
            raise UsageError(
                "no parameter of the optimizer got a gradient: the loss does not depend on any of "
                "them (detached outputs, or another model in loss_fn)"
            )
        grads = [each.grad for each in self.parameters if each.grad is not None]
        if not self.sparse and any(grad.layout != torch.strided for grad in grads):
            self.sparse = True
            self._list()

    def clear(self) -> None:
        """Drop all gradients."""
        if [len(group["params"]) for group in self._optimizer.param_groups] != self._sizes:
            self._list()  # groups are added to an optimizer as layers are unfrozen
        if self._own_zero_grad:
            self._optimizer.zero_grad(set_to_none=True)
            return
        for parameter in self.parameters:
            parameter.grad = None

    def present(self, coalesced: bool = True) -> list[Tensor]:
        """The gradients that there are; of sparse ones the values, one for each index."""
        if not self.sparse:
            return [each.grad for each in self.parameters if each.grad is not None]
        found = []
        for parameter in self.parameters:
            grad = parameter.grad
            if grad is not None and grad.is_sparse:
                if coalesced:
                    parameter.grad = grad = grad.coalesce()
                grad = grad._values()
            if grad is not None:
                found.append(grad)
        return found

    def scale(self, grads: list[Tensor], factor: float | Tensor) -> None:
        """Multiply all in place, a launch for each dtype; `factor` is a number or 0-d."""
        for kind in [grads] if self.plain and grads else _kinds(grads):
            factor_here = _for_kernels(factor, kind[0])
            if _is_own(kind[0]):
                torch._foreach_mul_(kind, factor_here)
            else:
                for grad in kind:
                    grad.mul_(factor_here)

    def norm(self, grads: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """The norm of all together (0-d), and those of the single ones where they are at hand."""
        if self.plain and grads:
            parts = torch.stack(torch._foreach_norm(grads))  # as in get_total_norm, in one group
            return torch.linalg.vector_norm(parts), parts
        if not grads:  # torch's own zero would be on the CPU, whatever the model is on
            return torch.zeros((), device=self.parameters[0].device), None
        total = torch.nn.utils.get_total_norm(grads)
        whole: Any = getattr(total, "full_tensor", None)  # of shards: a DTensor
        return (total if whole is None else whole()), None

    def finite_when_scaled(self, factor: float | Tensor | None) -> bool:
        """Multiply all in place in the pass that looks for NaN and Inf; waits for the device."""
        grads = self.present(coalesced=False)
        if not grads:
            return True
        if not self.plain:
            if factor is not None:
                self.scale(grads, factor)
            return all(bool(torch.isfinite(grad).all()) for grad in grads)
        one = self._one
        if factor is not None and self._wide:
            torch._foreach_mul_(grads, factor)  # a float32 factor would round
        elif factor is not None:
            one = torch.as_tensor(factor, dtype=torch.float32, device=self._one.device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, self._found, one)
        if self._found.item():
            self._found.zero_()
            return False
        return True

    def nonfinite(self) -> list[Tensor]:
        """The parameters whose gradient has NaN or Inf; waits for the device."""
        return [
            each
            for each in self.parameters
            if each.grad is not None and not bool(torch.isfinite(_values(each.grad)).all())
        ]

    def named_by(self, parts: Tensor | None) -> list[Tensor]:
        """The parameters whose norms in `parts` are not finite; waits for the device."""
        if parts is None:
            return []
        present = [each for each in self.parameters if each.grad is not None]
        if len(present) != len(parts):
            return []
        bad = (~torch.isfinite(parts)).tolist()
        return [each for each, is_bad in zip(present, bad, strict=True) if is_bad]


def _is_own(parameter: Tensor) -> bool:
    """Not of a subclass such as DTensor, whose norm is spread over the ranks."""
    return type(parameter) in (Tensor, nn.Parameter) or nn.parameter.is_lazy(parameter)


def _kinds(grads: list[Tensor]) -> list[list[Tensor]]:
    """Those of one device and dtype together; of shards (FSDP2) what lies here."""
    kinds: dict[Any, list[Tensor]] = {}
    for grad in grads:
        local: Any = getattr(grad, "to_local", None)
        tensor: Tensor = grad if local is None else local()
        kinds.setdefault((tensor.device, tensor.dtype, type(tensor)), []).append(tensor)
    return list(kinds.values())


def _for_kernels(factor: float | Tensor, like: Tensor) -> float | Tensor:
    """`factor` such that torch multiplies all in one launch: on their device, of their dtype.

    With another dtype it goes tensor by tensor, and rounds the factor alike. Not so on the CPU,
    which reads it in full: there half precision has nothing to gain, and digits to lose.
    """
    if not isinstance(factor, Tensor):
        return factor
    half = like.device.type == "cpu" and like.dtype.itemsize < 4
    return factor.to(like.device, torch.float32 if half else like.dtype)


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce()._values() if grad.is_sparse else grad
