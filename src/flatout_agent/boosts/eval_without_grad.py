"""Evaluate without recording a graph for a backward pass that never comes.

## What it does
Watches the model's calls in evaluation mode. Once a whole evaluation has passed without a backward
pass through its outputs, later calls of the same form run under `torch.no_grad()`.

## Why it is faster
With gradients on, every operation of an evaluation records a node and keeps its inputs alive: time
for each operation, and memory for all activations at once. Without, an activation is freed as soon
as the next layer has read it, so memory stays in the caches and the allocator reuses it.

## When it does nothing
In the first evaluation, which is only watched; where the script evaluates under `no_grad` or
`inference_mode` already; for calls whose inputs require gradients, or hold objects that cannot be
inspected; for models with forward or backward hooks, or with a part in training mode. After the
first backward pass through an evaluation's outputs it stays off for good.

## What it may change
Results stay the same. The outputs require gradients as before, and a backward pass through them
still gives the right gradient: the call is then made a second time. Two things cannot be repaired:
activations that the model stores on itself for a backward pass of the script's own carry no graph
after such a call, and a tensor with gradients that the model reads from elsewhere than its
parameters and inputs gets none. Both matter only to a program whose first evaluation did not use
them.

## How it is undone
The layer around the model's call and the hooks that watch are removed.

## References
- https://pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
- https://pytorch.org/docs/stable/generated/torch.no_grad.html
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Moment, Risk
from flatout_agent.chain import Depth
from flatout_agent.speedups import nests
from flatout_agent.speedups.recompute import Call

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(since="0.1.0", risk=Risk.EXACT, moment=Moment.MODEL, evaluates=True)

Mask = tuple[bool, ...]


def applies(facts: JobFacts, params: Params) -> str | None:
    """Only a job that evaluates with gradients on can gain."""
    if not facts.eval_seen:
        return "no evaluation was seen between the steps"
    if not facts.eval_with_grad:
        return "evaluation runs without gradients already"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Evaluation is a part of the run that its steps do not show."""
    return 1.05


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Watch this model's evaluations; it decides for itself when it may act."""
    watch = _Watch(target)
    undo_layer = job.wrap_call(target, Depth.EVALUATION, watch.layer)

    def undo() -> None:
        undo_layer()
        watch.stop("taken back")

    return Applied(undo, watch.engagement)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The context that evaluation belongs into."""
    return "\n".join(
        [
            "model.eval()",
            "with torch.no_grad():  # around the whole evaluation",
            "    for batch in eval_loader:",
            "        ...",
        ]
    )


class _Watch:
    """What is known of one model's evaluations."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = weakref.ref(model)  # the layer lives in the model
        self.off: str | None = None
        self.watched: dict[Any, Mask] = {}
        """Form of the inputs -> which outputs required gradients, in the evaluation under way."""
        self.proven: dict[Any, Mask] = {}
        """The same, from evaluations that were followed by training and no backward."""
        self.engaged = 0
        self.saw_no_grad = False
        self._handles: list[Any] = []

    def layer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        def watched_call(*args: Any, **kwargs: Any) -> Any:
            model = self.model()
            if self.off is not None or model is None:
                return call(*args, **kwargs)
            with_gradients = torch.is_grad_enabled()
            if model.training:
                if with_gradients:
                    self._training_goes_on()
                return call(*args, **kwargs)
            if not with_gradients:
                self.saw_no_grad = True
                return call(*args, **kwargs)
            return self._evaluate(model, call, args, kwargs)

        return watched_call

    def stop(self, reason: str) -> None:
        self.off = self.off or reason
        self.watched.clear()
        self.proven.clear()
        self._remove_hooks()

    def engagement(self) -> tuple[bool, str]:
        if self.engaged:
            return True, f"{self.engaged} evaluation calls without gradients"
        if self.off is not None:
            return False, self.off
        if self.watched or self.proven:
            return False, "only one evaluation was seen, and the first is only watched"
        if self.saw_no_grad:
            return False, "evaluation runs without gradients already"
        return False, "no evaluation was seen so far"

    def _training_goes_on(self) -> None:
        if self.watched:
            self.proven.update(self.watched)
            self.watched.clear()
            self._remove_hooks()

    def _evaluate(
        self,
        model: torch.nn.Module,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        import torch

        form = _form((args, kwargs))
        if form is None:
            return call(*args, **kwargs)
        mask = self.proven.get(form)
        if mask is None:
            outputs = call(*args, **kwargs)
            self._watch_outputs(model, form, outputs)
            return outputs
        if _has_hooks_or_trains(model):
            return call(*args, **kwargs)
        self.engaged += 1
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        recomputation = Call(lambda: call(*args, **kwargs), parameters, self._touched)
        with torch.no_grad():
            outputs = call(*args, **kwargs)
        if recomputation.autocast:  # its cache now holds casts of the weights without a graph
            torch.clear_autocast_cache()
        return recomputation.attach(outputs, mask)

    def _watch_outputs(self, model: torch.nn.Module, form: Any, outputs: Any) -> None:
        tensors = list(nests.tensors(outputs))
        if not self.watched:
            self._watch_parameters(model)
        self.watched[form] = tuple(tensor.requires_grad for tensor in tensors)
        for tensor in tensors:
            if tensor.grad_fn is not None:  # on the node: the tensor itself stays as it is
                tensor.grad_fn.register_prehook(self._touched)

    def _watch_parameters(self, model: torch.nn.Module) -> None:
        """A backward during the evaluation might start elsewhere than at the outputs."""
        import torch

        edge = torch.autograd.graph.get_gradient_edge
        for parameter in model.parameters():
            if parameter.requires_grad:
                node = edge(parameter).node
                self._handles.append((node, node.register_prehook(self._touched)))

    def _touched(self, *_: Any) -> None:
        self.stop("a backward passes through the outputs of evaluation calls")

    def _remove_hooks(self) -> None:
        for _, handle in self._handles:
            handle.remove()
        self._handles.clear()


def _has_hooks_or_trains(model: torch.nn.Module) -> bool:
    """Hooks may want the graph; a part in training mode may draw or count at every call."""
    return any(
        module.training
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        for module in model.modules()
    )


def _form(value: Any) -> Any:
    """What kind of call this is, hashable; None: unknown, or an input requires gradients."""
    if value is None or isinstance(value, bool | str):
        return ("value", value)
    if isinstance(value, int | float) or type(value).__module__ == "torch":
        requires = getattr(value, "requires_grad", False)
        return None if requires else ("kind", type(value).__qualname__)
    pairs = nests.members(value)
    if pairs is None:
        return None
    parts = [(str(key), _form(item)) for key, item in pairs]
    if any(form is None for _, form in parts):
        return None
    return (type(value).__qualname__, tuple(parts))
