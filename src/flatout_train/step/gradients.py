"""The gradients of an optimizer's parameters: clearing, scaling, norms, finiteness."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flatout_train.errors import UsageError


class Gradients:
    """The gradients of all parameters of one optimizer."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._own_zero_grad = type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad
        self.sparse = any(getattr(module, "sparse", False) is True for module in model.modules())
        """Some may be sparse; certain after `settle`."""
        self._sizes: list[int] = []
        self.parameters: list[Tensor] = []
        self.plain = False
        """All are dense real tensors of one dtype on one device."""
        self._list()

    def _list(self) -> None:
        groups = self._optimizer.param_groups
        self._sizes = [len(group["params"]) for group in groups]
        self.parameters = [parameter for group in groups for parameter in group["params"]]
        kinds = {(parameter.device, parameter.dtype) for parameter in self.parameters}
        self.plain = (
            not self.sparse
            and len(kinds) == 1
            and not any(parameter.is_complex() for parameter in self.parameters)
            and all(_is_own(parameter) for parameter in self.parameters)
        )
        first = self.parameters[0]
        device = first.device if self.plain else torch.device("cpu")
        self._wide = first.dtype == torch.float64
        self._found_inf = torch.zeros((), device=device)
        self._unit_scale = torch.ones((), device=device)

    def settle(self, expected: bool) -> None:
        """Check the gradients of the first backward pass: sparse ones show only then.

        Raises UsageError if gradients are `expected` and there are none.
        """
        if expected and not any(parameter.grad is not None for parameter in self.parameters):
            raise UsageError(
                "no parameter of the optimizer got a gradient: the loss does not depend on any of "
                "them. Check for detached outputs, or another model in loss_fn"
            )
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if not self.sparse and any(grad.layout != torch.strided for grad in grads):
            self.sparse = True
            self._list()

    def clear(self) -> None:
        """Set all gradients to None."""
        if [len(group["params"]) for group in self._optimizer.param_groups] != self._sizes:
            self._list()  # parameter groups may be added as layers are unfrozen
        if self._own_zero_grad:
            self._optimizer.zero_grad(set_to_none=True)
            return
        for parameter in self.parameters:
            parameter.grad = None

    def present(self, coalesced: bool = True) -> list[Tensor]:
        """The gradients that exist; for sparse ones their values (coalesced: one per index)."""
        if not self.sparse:
            return [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        gradients = []
        for parameter in self.parameters:
            grad = parameter.grad
            if grad is not None and grad.is_sparse:
                if coalesced:
                    parameter.grad = grad = grad.coalesce()
                grad = grad._values()
            if grad is not None:
                gradients.append(grad)
        return gradients

    def scale(self, grads: list[Tensor], factor: float | Tensor) -> None:
        """Multiply all in place, one launch per dtype; `factor` is a number or a 0-d tensor."""
        for kind in [grads] if self.plain and grads else _kinds(grads):
            local_factor = _for_kernels(factor, kind[0])
            if _is_own(kind[0]):
                torch._foreach_mul_(kind, local_factor)
            else:
                for grad in kind:
                    grad.mul_(local_factor)

    def norm(self, grads: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """The L2 norm of all together (0-d), and of each one (1-d) if available."""
        if self.plain and grads:
            parts = torch.stack(torch._foreach_norm(grads))  # as in get_total_norm, in one group
            return torch.linalg.vector_norm(parts), parts
        if not grads:  # torch's own zero would be on the CPU, whatever the model's device
            return torch.zeros((), device=self.parameters[0].device), None
        total = torch.nn.utils.get_total_norm(grads)
        full_tensor: Any = getattr(total, "full_tensor", None)  # of shards: a DTensor
        return (total if full_tensor is None else full_tensor()), None

    def finite_when_scaled(self, factor: float | Tensor | None) -> bool:
        """Multiply all in place and check for NaN and Inf in one pass; waits for the device."""
        grads = self.present(coalesced=False)
        if not grads:
            return True
        if not self.plain:
            if factor is not None:
                self.scale(grads, factor)
            return all(bool(torch.isfinite(grad).all()) for grad in grads)
        inverse_scale = self._unit_scale
        if factor is not None and self._wide:
            torch._foreach_mul_(grads, factor)  # a float32 factor would round
        elif factor is not None:
            inverse_scale = torch.as_tensor(
                factor, dtype=torch.float32, device=self._unit_scale.device
            )
        torch._amp_foreach_non_finite_check_and_unscale_(grads, self._found_inf, inverse_scale)
        if self._found_inf.item():
            self._found_inf.zero_()
            return False
        return True

    def nonfinite(self) -> list[Tensor]:
        """The parameters whose gradient contains NaN or Inf; waits for the device."""
        return [
            parameter
            for parameter in self.parameters
            if parameter.grad is not None
            and not bool(torch.isfinite(_values(parameter.grad)).all())
        ]

    def named_by(self, parts: Tensor | None) -> list[Tensor]:
        """The parameters whose norms in `parts` are not finite; waits for the device."""
        if parts is None:
            return []
        present = [parameter for parameter in self.parameters if parameter.grad is not None]
        if len(present) != len(parts):
            return []
        bad = (~torch.isfinite(parts)).tolist()
        return [parameter for parameter, is_bad in zip(present, bad, strict=True) if is_bad]


def _is_own(parameter: Tensor) -> bool:
    """Whether it is no subclass such as DTensor, whose norm is spread over the ranks."""
    return type(parameter) in (Tensor, nn.Parameter) or nn.parameter.is_lazy(parameter)


def _kinds(grads: list[Tensor]) -> list[list[Tensor]]:
    """The gradients grouped by device and dtype; for shards (FSDP2) the local part."""
    kinds: dict[Any, list[Tensor]] = {}
    for grad in grads:
        local: Any = getattr(grad, "to_local", None)
        tensor: Tensor = grad if local is None else local()
        kinds.setdefault((tensor.device, tensor.dtype, type(tensor)), []).append(tensor)
    return list(kinds.values())


def _for_kernels(factor: float | Tensor, like: Tensor) -> float | Tensor:
    """`factor` such that torch multiplies all in one launch: on their device, in their dtype.

    With another dtype torch multiplies tensor by tensor, and rounds the factor just the same. The
    CPU does not round it: there a factor in half precision would gain nothing and lose digits.
    """
    if not isinstance(factor, Tensor):
        return factor
    half = like.device.type == "cpu" and like.dtype.itemsize < 4
    return factor.to(like.device, torch.float32 if half else like.dtype)


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce()._values() if grad.is_sparse else grad
