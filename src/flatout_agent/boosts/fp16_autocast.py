"""Run the model in float16 with loss scaling, on GPUs that have no bfloat16.

## What it does

Runs every call of the model inside `torch.autocast("cuda", torch.float16)` and casts the outputs
back to float32. `backward` starts from the loss times a scale, so that small gradients do not
vanish in float16; each parameter's gradient is divided by the scale as it arrives. So the script
accumulates, clips and logs true gradients. When one is not finite, the step is skipped (its
gradients are set to None) and the scale halved; after 2000 good steps it is doubled.

## Why it is faster

Tensor Cores of Volta and Turing GPUs take float16 at up to eight times the float32 rate, and
activations take half the memory.

## When it does nothing

- The GPU has native bfloat16: bf16-autocast needs no scale. Or it has no Tensor Cores.
- The script opens its own autocast region, scales its loss, or the model is not in float32.
- The script has hooks on gradients: they would see scaled ones.

## What it may change

Products are rounded to 11 significant bits; gradients that overflow float16 cost a skipped step.

## How it is undone

The layer around the call, the hooks on the parameters and the one on the optimizers are removed,
and `torch.autograd.backward` is torch's own again.

## References

- https://docs.pytorch.org/docs/stable/notes/amp_examples.html
- Micikevicius et al., Mixed Precision Training, https://arxiv.org/abs/1710.03740
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.replacing import replaced
from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Undo
from flatout_agent.boosts import speedup_of_work
from flatout_agent.speedups import nests
from flatout_agent.speedups.precision import AutocastCall, native_bf16, why_not_float32

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.ROUNDING,
    moment=Moment.MODEL,
    conflicts=("bf16-autocast",),
    rounds_by=2.0**-12,
)
FIRST_SCALE = 2.0**12
GROW_AFTER = 2000
"""Steps in a row without overflow after which the scale is doubled."""

_scalers: weakref.WeakKeyDictionary[Any, Scaler] = weakref.WeakKeyDictionary()


def loss_scale() -> float:
    """The scale, a power of two, from which backward passes start now; 1.0 while it is off."""
    return max((scaler.scale for scaler in _scalers.values() if scaler.users), default=1.0)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device != "cuda":
        return f"float16 needs a GPU, the model is on {facts.device}"
    if facts.bf16:
        return "this GPU has native bfloat16, which needs no loss scaling"
    if facts.capability is not None and facts.capability < (7, 0):
        return "this GPU (compute capability {}.{}) has no Tensor Cores".format(*facts.capability)
    if facts.autocast is not None:
        return f"the script opens its own autocast region ({facts.autocast})"
    if facts.by_hand:
        return "no optimizer steps that could be skipped where gradients overflow"
    if facts.scaler:
        return "the script scales its loss for float16 itself"
    if facts.models and all(model.dtype != "float32" for model in facts.models):
        return f"the model is in {facts.models[0].dtype}, not in float32"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, for the order of trials."""
    return speedup_of_work(facts, 1.8)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Put autocast around the model's call and the scale into `backward`."""
    import torch

    device = next((p.device for p in target.parameters()), torch.device("cpu"))
    reason = why_not_float32(target) or _no_use(device) or _hooked(target)
    if reason is not None:
        raise Declined(reason)
    scaler = _scalers.get(job)
    if scaler is None:
        scaler = _scalers[job] = Scaler()
    autocast = AutocastCall(target, device.type, torch.float16)

    def layer(call: Callable[..., Any]) -> Callable[..., Any]:
        return scaler.watch(autocast.layer(call))

    close = scaler.open(list(target.parameters()))
    unwrap = autocast.around(job, target, layer)

    def undo() -> None:
        unwrap()
        close()

    return Applied(undo, lambda: _engaged(autocast, scaler))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        'scaler = torch.amp.GradScaler("cuda")  # before training\n'
        'with torch.autocast("cuda", dtype=torch.float16):\n'
        "    output = model(inputs)\n"
        "loss = loss_fn(output.float(), targets)\n"
        "scaler.scale(loss).backward()\n"
        "scaler.unscale_(optimizer)  # only where gradients are clipped\n"
        "scaler.step(optimizer)\n"
        "scaler.update()\n"
    )


def _no_use(device: torch.device) -> str | None:
    import torch

    if device.type != "cuda":
        return f"float16 needs a GPU, the model is on {device.type}"
    if native_bf16(device).native:
        return "this GPU has native bfloat16, which needs no loss scaling"
    capability = torch.cuda.get_device_capability(device)
    if capability < (7, 0):
        return "this GPU (compute capability {}.{}) has no Tensor Cores".format(*capability)
    return None


def _hooked(model: torch.nn.Module) -> str | None:
    if any(parameter._backward_hooks for parameter in model.parameters()):
        return "the script has hooks on its parameters' gradients, which would see scaled ones"
    if any(module._backward_hooks or module._backward_pre_hooks for module in model.modules()):
        return "the script has backward hooks, which would see scaled gradients"
    return None


def _engaged(autocast: AutocastCall, scaler: Scaler) -> tuple[bool, str] | None:
    if scaler.steps and scaler.skipped == scaler.steps:
        return False, "every step was skipped: gradients overflow float16"
    return autocast.engaged(f"scale {scaler.scale:g}, {scaler.skipped} steps skipped")


class Scaler:
    """Loss scaling without an edit; one serves all models of a job."""

    def __init__(self) -> None:
        import torch

        self.scale = FIRST_SCALE
        self.steps = self.skipped = self.good = 0
        self.active = False
        """A scaled backward pass is under way."""
        self.users = 0
        self.hooks: dict[int, tuple[weakref.ref[Any], Any]] = {}
        """Keyed by the leaf's id, as tensors have no plain equality to look them up by."""
        self.outputs: list[Any] = []
        """Graph nodes of the models' outputs since the last backward pass."""
        self.own_backward: Callable[..., Any] = torch.autograd.backward
        self._restore_backward: Undo
        self.step_hook: Any = None

    def open(self, parameters: list[torch.Tensor]) -> Callable[[], None]:
        """Begin to serve a model with these parameters; returns the undo function."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        if self.users == 0:
            self.own_backward = torch.autograd.backward
            autograd = torch.autograd
            self._restore_backward = replaced(autograd, "backward", self._backward)
            self.step_hook = register_optimizer_step_pre_hook(self._before_step)
        self.users += 1
        for parameter in parameters:
            self._hook(parameter)
        return self._close

    def _close(self) -> None:
        self.users -= 1
        if self.users == 0:
            for _, hook in self.hooks.values():
                hook.remove()
            self.hooks.clear()
            self.outputs.clear()
            self.step_hook.remove()
            self._restore_backward()

    def watch(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with its outputs recorded: every parameter behind them is known."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            for tensor in nests.tensors([args, kwargs]):
                if tensor.requires_grad and tensor.is_leaf:
                    self._hook(tensor)
            output = call(*args, **kwargs)
            nodes = [item.grad_fn for item in nests.tensors(output) if item.grad_fn is not None]
            self.outputs = [*self.outputs, *nodes][-256:]
            return output

        return watched

    def _hook(self, leaf: Any) -> None:
        if leaf.requires_grad and not self._known(leaf):
            hooks, key = self.hooks, id(leaf)
            reference = weakref.ref(leaf, lambda _: hooks.pop(key, None))
            hooks[key] = (reference, leaf.register_hook(self._unscale))

    def _known(self, leaf: Any) -> bool:
        entry = self.hooks.get(id(leaf))
        return entry is not None and entry[0]() is leaf

    def _unscale(self, gradient: torch.Tensor) -> Any:
        return gradient / self.scale if self.active else gradient

    def _backward(
        self,
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> None:
        """`torch.autograd.backward`, started from the loss times the scale."""
        scaled = None
        if self.outputs and not self.active and not create_graph:
            scaled = self._scaled(tensors, grad_tensors, grad_variables)
        if scaled is None:
            self.own_backward(
                tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
            )
            return
        self._hook_outside(tensors)
        self.active = True
        try:
            self.own_backward(tensors, scaled, retain_graph, False, inputs=inputs)
        finally:
            self.active = False
            if not retain_graph:
                self.outputs.clear()

    def _scaled(self, tensors: Any, grad_tensors: Any, grad_variables: Any) -> Any:
        """The gradients to start from, or None if nothing is to be scaled."""
        import torch

        if grad_variables is not None or not isinstance(tensors, torch.Tensor):
            return None
        if grad_tensors is None:
            # Anything but one number is an error, which torch should report.
            return torch.full_like(tensors, self.scale) if tensors.numel() == 1 else None
        if not isinstance(grad_tensors, torch.Tensor):
            return None
        return grad_tensors * self.scale

    def _hook_outside(self, loss: Any) -> None:
        """Trainable tensors between the models and the loss get scaled gradients as well."""
        stack = [loss.grad_fn] if loss.grad_fn is not None else []
        visited = {*self.outputs, *stack}
        stack = [node for node in stack if node not in self.outputs]
        while stack:
            node = stack.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                self._hook(leaf)
            for following, _ in node.next_functions:
                if following is not None and following not in visited:
                    visited.add(following)
                    stack.append(following)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        leaves = [p for group in optimizer.param_groups for p in group["params"]]
        if not any(self._known(leaf) for leaf in leaves):
            return
        self.steps += 1
        if self._finite([leaf.grad for leaf in leaves if leaf.grad is not None]):
            self.good += 1
            if self.good % GROW_AFTER == 0:
                self.scale *= 2.0
            return
        for leaf in leaves:
            leaf.grad = None
        self.skipped += 1
        self.good = 0
        self.scale = max(self.scale / 2.0, 1.0)

    def _finite(self, gradients: list[Any]) -> bool:
        import torch

        dense = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
        by_device: dict[Any, list[Any]] = {}
        for gradient in dense:
            by_device.setdefault((gradient.device, gradient.dtype), []).append(gradient)
        for (device, _), group in by_device.items():
            overflow = torch.zeros((), device=device)
            # Multiplied by one: this only checks them, in one kernel for all.
            scale = torch.ones((), device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(group, overflow, scale)
            if overflow.item():
                return False
        return True
