"""Feed images to convolutions in the memory order that their kernels prefer.

## What it does

Converts every 4-d floating-point input of the model to the channels-last memory format, in which
the channels of one pixel lie side by side. Convolutions, pooling and normalization hand that
format on from layer to layer. 4-d outputs are handed back in the usual format.

Weights keep their format: they are small compared with the activations, and each convolution
reorders its own. So checkpoints (safetensors refuses other formats) and the optimizer's state are
the same as without flatout.

`randn_like` and `rand_like` of such an image draw in the order of the usual format, as do the masks
of dropout on a CPU: a diffusion model gets the same noise as without flatout.

## Why it is faster

Tensor Cores and oneDNN compute in blocks of channels. In the usual format each convolution reorders
its input and output around the kernel; in channels-last it does not have to.

## When it does nothing

- The model has no 2-d convolution.
- The script already converts the model or its inputs.
- The model takes no 4-d input (it builds its images inside).
- The model uses `.view()` in a way that needs the usual format: the first call then runs again
  without this boost, and it stays off.

## What it may change

Sums are taken in another order, so results differ in the last bits.

## How it is undone

The layer around the model's call is removed; nothing of the model was changed.

## References

- https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
- https://uxlfoundation.github.io/oneDNN/dev_guide_understanding_memory_formats.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import Depth
from flatout_agent.attach.replacing import in_reverse
from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup, speedup_of_work
from flatout_agent.speedups import nests
from flatout_agent.speedups.channels_last import ChannelsLast, convolutions, is_channels_last
from flatout_agent.speedups.kept_tensors import KeptTensors
from flatout_agent.speedups.usual_draws import usual_draws

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.EXACT,
    moment=Moment.MODEL,
)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    models = [model for model in facts.models if model.conv2d]
    if not models:
        return "the model has no 2-d convolution"
    if all(model.channels_last for model in models):
        return "the script already uses channels-last"
    shapes = [shape for model in models for shape in model.input_shapes]
    if shapes and not any(shape.count("x") == 3 for shape in shapes):
        return "the model takes no 4-d input"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, for the order of trials."""
    measured = speedup(facts, convolutions=1.5, norms=1.3, others=1.1)
    if measured is not None:
        return measured
    full = 1.3 if facts.device == "cpu" else 1.2
    return speedup_of_work(facts, full)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Convert 4-d inputs of the model's calls."""
    import torch

    layers = convolutions(target, [4])
    if not layers:
        raise Declined("the model has no 2-d convolution")
    if any(is_channels_last(module.weight) for module in layers):
        raise Declined("the script already uses channels-last")
    if all(module.weight.dtype == torch.float64 for module in layers):
        raise Declined("float64 convolutions have no channels-last kernels")
    layout = Layout(target)
    unwrap = job.wrap_call(target, Depth.LAYOUT, layout.layer)
    usual_draws().hold()
    return Applied(in_reverse([unwrap, usual_draws().let_go]), layout.engaged)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        "model = model.to(memory_format=torch.channels_last)  # before training\n"
        "images = images.to(memory_format=torch.channels_last)  # each batch\n"
    )


class Layout(ChannelsLast):
    """The layer around one model's call."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model, [4])
        self.calls = 0
        self._kept = KeptTensors(model, self._usual)
        self.proven: set[bool] = set()
        """Modes (training or not) in which a call has succeeded."""

    def layer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call` with 4-d inputs in channels-last and 4-d outputs back."""

        def in_channels_last(*args: Any, **kwargs: Any) -> Any:
            if self.refused:
                return call(*args, **kwargs)
            self.calls += 1
            training = self.model.training

            def converted() -> Any:
                with usual_draws().inside():
                    return call(*self.to(args), **self.to(kwargs))

            output = self.call(
                lambda: self._kept.around(converted),
                lambda: call(*args, **kwargs),
                keep=training not in self.proven,
            )
            if self.refused:
                return output
            self.proven.add(self.model.training)
            return nests.change(output, self._usual)

        return in_channels_last

    def _usual(self, tensor: torch.Tensor) -> Any:
        return tensor.contiguous() if is_channels_last(tensor) else tensor

    def engaged(self) -> tuple[bool, str] | None:
        """For `Applied.engaged`."""
        if self.refused:
            return False, self.refused
        if not self.calls:
            return None
        if not self.converted:
            return False, "no 4-d input in the usual format reached the model"
        return True, ""
