"""The optimizer's update in one kernel: torch's own fused or foreach implementation, with undo.

The boost `fused-optimizer` and the library's `train_step` share this.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Declined

if TYPE_CHECKING:
    import torch

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
FOREACH = ("Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
FLAGS = ("fused", "foreach")
CHECKED = "_need_device_dtype_check_for_fused"
"""The attribute that torch sets on an optimizer at its first fused step."""


def faster(optimizer: torch.optim.Optimizer) -> tuple[str, str]:
    """(flag, kernel) of its fused (or foreach) implementation. Raises Declined if it has none."""
    first = optimizer.param_groups[0]["params"][0]
    names = inspect.signature(type(optimizer).__init__).parameters
    kernel, refused = "", ""
    if "fused" in names:
        kernel, refused = _probe(type(optimizer), first)
    if kernel:
        return "fused", kernel
    if "foreach" not in names:
        raise Declined(refused or f"{type(optimizer).__name__} has no fused implementation")
    if first.device.type != "cpu":
        raise Declined(refused or "it has no fused implementation, and foreach is the default here")
    return "foreach", "foreach"


def cannot(optimizer: torch.optim.Optimizer) -> str | None:
    """Why this optimizer's implementation must not be changed, or None if it may be."""
    import torch

    kind = type(optimizer).__name__
    if type(optimizer) is not getattr(torch.optim, kind, None):
        return f"{kind} is not one of torch.optim's own classes"
    for group in optimizer.param_groups:
        if group.get("fused") is not None or group.get("foreach") is not None:
            return f"the script chose the implementation of {kind} itself"
        if group.get("differentiable"):
            return "the script differentiates through the optimizer"
        if any(isinstance(value, torch.Tensor) for value in _flat(group)):
            return "a hyper-parameter (learning rate, beta) is a tensor"
        for parameter in group["params"]:
            if type(parameter) not in (torch.Tensor, torch.nn.Parameter):
                return f"a parameter is a {type(parameter).__name__}, not a plain tensor"
            if not parameter.is_floating_point() or parameter.dtype == torch.float8_e4m3fn:
                return f"a parameter is {parameter.dtype}"
            if not _is_dense(parameter):
                return "a parameter is a strided view"
    everything = [p for group in optimizer.param_groups for p in group["params"]]
    if not everything:
        return "the optimizer has no parameters"
    if len({(p.device, p.dtype) for p in everything}) > 1:
        return "the parameters differ in device or precision"
    return None


def _flat(group: dict[str, Any]) -> list[Any]:
    values = [value for key, value in group.items() if key != "params"]
    return values + [item for value in values if isinstance(value, tuple) for item in value]


def _is_dense(tensor: torch.Tensor) -> bool:
    import torch

    return bool(
        tensor.is_contiguous()
        or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
        or (tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d))
    )


def _probe(kind: Any, parameter: Any) -> tuple[str, str]:
    """(the fused kernel that runs for a parameter like this one, or why none does)."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    operations: list[str] = []

    base: Any = TorchDispatchMode

    class Watch(base):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
            operations.append(str(func))
            return func(*args, **(kwargs or {}))

    trial = torch.zeros(2, dtype=parameter.dtype, device=parameter.device, requires_grad=True)
    trial.grad = torch.zeros_like(trial)
    # Without the wrapper that calls hooks: no hook may see this optimizer take a step.
    step = kind.step.__wrapped__ if getattr(kind.step, "hooked", False) else kind.step
    try:
        with Watch():
            step(kind([trial], fused=True))
    except Exception as error:
        return "", f"{kind.__name__} refuses fused here: {str(error).splitlines()[0]}"
    kernels = [name for name in operations if "_fused_" in name]
    if not kernels:
        return "", f"{kind.__name__} has no fused kernel for {parameter.device.type}"
    return kernels[0].removeprefix("aten.").partition(".")[0].rstrip("_"), ""


class FusedUpdate:
    """One optimizer's implementation, switched on and off."""

    def __init__(self, optimizer: torch.optim.Optimizer, flag: str, kernel: str) -> None:
        self.optimizer = optimizer
        self.flag, self.kernel = flag, kernel
        self.steps = 0
        self.own = {name: optimizer.defaults.get(name) for name in FLAGS}
        self.checked = vars(optimizer).get(CHECKED)
        self.hooks: list[Any] = []

    def on(self) -> None:
        """Use the faster implementation from the next step on."""
        self._set()
        optimizer = self.optimizer
        self.hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_state_dict_post_hook(self._saved),
            optimizer.register_load_state_dict_post_hook(lambda _: self._set()),
        ]

    def off(self) -> None:
        """Restore the script's implementation."""
        for hook in self.hooks:
            hook.remove()
        self._restore()
        if self.checked is None:
            vars(self.optimizer).pop(CHECKED, None)

    def _restore(self) -> None:
        for values in (self.optimizer.defaults, *self.optimizer.param_groups):
            values.update({name: self.own[name] for name in FLAGS if name in values})
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                state = self.optimizer.state.get(parameter, {})
                if "step" in state:
                    state["step"] = self._plain_step(state["step"], group)

    def _set(self) -> None:
        """Set the flag and move the state to where that implementation needs it."""
        import torch

        other = "foreach" if self.flag == "fused" else "fused"
        for values in (self.optimizer.defaults, *self.optimizer.param_groups):
            values[self.flag] = True
            if other in values:
                values[other] = False
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                state = self.optimizer.state.get(parameter, {})
                for name, value in state.items():
                    if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                        state[name] = self._aligned(value, parameter)
                if self.flag == "fused" and isinstance(state.get("step"), torch.Tensor):
                    state["step"] = state["step"].to(parameter.device, torch.float32)

    def _aligned(self, tensor: torch.Tensor, parameter: torch.Tensor) -> Any:
        """`tensor` in the memory order of `parameter`, as fused kernels walk through both in
        parallel.
        """
        import torch

        if tensor.stride() == parameter.stride() or tensor.dim() == 0:
            return tensor
        return torch.empty_like(parameter).copy_(tensor)

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> tuple[Any, Any] | None:
        self.steps += 1
        self._align_gradients()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            return None

        def aligned() -> Any:
            loss = closure()
            self._align_gradients()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": aligned}
        return (args[0], aligned, *args[2:]), kwargs

    def _align_gradients(self) -> None:
        import torch

        # On the CPU a fused kernel accepts another memory order but computes wrong results.
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                grad = parameter.grad
                if grad is None or grad.layout != torch.strided:
                    continue
                if grad.stride() != parameter.stride():
                    parameter.grad = self._aligned(grad, parameter)

    def _plain_step(self, step: Any, group: dict[str, Any]) -> Any:
        """The step count as the plain implementation keeps it."""
        import torch

        if not isinstance(step, torch.Tensor) or group.get("capturable"):
            return step
        double = torch.get_default_dtype() == torch.float64
        return step.to("cpu", torch.float64 if double else torch.float32)

    def _saved(self, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        """The state dict as it would be without flatout."""
        state = dict(saved["state"])
        for group in saved["param_groups"]:
            group.update({name: self.own[name] for name in FLAGS if name in group})
            for index in group["params"]:
                if "step" in state.get(index, {}):
                    step = self._plain_step(state[index]["step"], group)
                    state[index] = {**state[index], "step": step}
        return {**saved, "state": state}

    def engaged(self) -> tuple[bool, str] | None:
        """For `Applied.engaged`."""
        if not self.steps:
            return None
        if not all(group.get(self.flag) for group in self.optimizer.param_groups):
            return False, f"the script set {self.flag} back"
        return True, self.kernel
