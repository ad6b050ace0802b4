"""What can be wrong with a training step as the user set it up, said by name and with the cure.

Looked at when the step is made, on its first call, and when torch raises: never on each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatout_agent.speedups import nests
from flatout_train.errors import UsageError
from flatout_train.step.fitting import is_out_of_memory

NONFINITE = ("stop", "skip", "halve")
WEIGH = ("samples", "tokens", "sum")
SHOWN = 3
"""So many of several parameters are named."""


@dataclass(frozen=True)
class Options:
    """What `train_step` was asked for, checked on its own."""

    accumulate: int
    weigh: str | Callable[[Any], Any]
    clip_norm: float | None
    ema: float | None
    nonfinite: str
    graph: str | bool
    recompute: str | bool

    def __post_init__(self) -> None:
        count = self.accumulate
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(
                f"accumulate={count!r}: it is how many calls make one optimizer step, 1 or more"
            )
        if self.weigh not in WEIGH and not callable(self.weigh):
            raise UsageError(f"weigh={self.weigh!r} is not known: {_one_of(WEIGH)} or a function")
        if self.clip_norm is not None and not _number(self.clip_norm) > 0:
            raise UsageError(f"clip_norm={self.clip_norm!r}: the largest gradient norm is above 0")
        if self.ema is not None and not 0 < _number(self.ema) < 1:
            raise UsageError(f"ema={self.ema!r}: the decay is between 0 and 1, such as 0.999")
        if self.nonfinite not in NONFINITE:
            raise UsageError(f"nonfinite={self.nonfinite!r} is not known: {_one_of(NONFINITE)}")
        for name in ("graph", "recompute"):
            value = getattr(self, name)
            if value != "auto" and not isinstance(value, bool):
                raise UsageError(f'{name}={value!r} is not known: "auto", True or False')


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")


def _one_of(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def check_kinds(model: Any, loss_fn: Any, optimizer: Any, scheduler: Any) -> None:
    """Each argument is what its name says."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is a {type(model).__name__}: it must be a torch.nn.Module")
    if loss_fn is not None and not callable(loss_fn):
        raise UsageError(f"loss_fn is a {type(loss_fn).__name__}: it must be callable, or None")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"optimizer is a {type(optimizer).__name__}: it must be a torch.optim.Optimizer"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(
            "LBFGS evaluates the loss several times in one step: write its loop by hand, with a "
            "closure, or take another optimizer"
        )
    if scheduler is not None:
        _check_scheduler(scheduler, optimizer)


def _check_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UsageError(
            "ReduceLROnPlateau needs a measured value at each step: leave scheduler=None "
            "and call scheduler.step(value) where you validate"
        )
    if not callable(getattr(scheduler, "step", None)):
        raise UsageError(f"scheduler is a {type(scheduler).__name__}: it has no step()")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UsageError("the scheduler was made for another optimizer: make it for this one")


def check_parameters(model: nn.Module, loss_fn: Any, optimizer: torch.optim.Optimizer) -> None:
    """The optimizer holds exactly what the model learns."""
    named = dict(model.named_parameters())
    own = {id(parameter) for parameter in named.values()}
    if isinstance(loss_fn, nn.Module):
        own |= {id(parameter) for parameter in loss_fn.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    ids = {id(parameter) for parameter in held}
    trainable = {name: each for name, each in named.items() if each.requires_grad}
    if not trainable:
        raise UsageError(
            "the model has no trainable parameters: none has requires_grad=True"
            if named
            else "the model has no parameters: there is nothing to train"
        )
    for name, parameter in trainable.items():
        if parameter.device.type == "meta":
            raise UsageError(
                f"{name} is on the meta device and has no values: load or initialise the weights "
                'first, such as model.to_empty(device="cuda")'
            )
    missing = {name: each for name, each in trainable.items() if id(each) not in ids}
    foreign = [parameter for parameter in held if id(parameter) not in own]
    if missing and foreign:
        raise _foreign(missing, foreign, len(trainable))
    if missing:
        raise UsageError(
            f"{_count(len(missing), 'parameter')} of the model {_are(len(missing))} not in the "
            f"optimizer: {_listed(missing)}. Give them to it, or freeze them with "
            "requires_grad_(False)"
        )


def _foreign(missing: dict[str, Any], foreign: list[Any], trainable: int) -> UsageError:
    shapes = {tuple(parameter.shape) for parameter in foreign}
    moved = [name for name, each in missing.items() if tuple(each.shape) in shapes]
    all_of_them = len(missing) == trainable
    if len(moved) < len(missing):
        cause = "it was made for another model"
    else:
        name = moved[0]
        shape = tuple(missing[name].shape)
        other = next(each for each in foreign if tuple(each.shape) == shape)
        if other.device != missing[name].device or type(other) is not type(missing[name]):
            cause = "it was made before the model was moved, so it still holds the old tensors"
        else:
            cause = "it was made for another model, or before the model's tensors were replaced"
    amount = "none" if all_of_them else "not all"
    return UsageError(
        f"the optimizer holds {amount} of the model's trainable parameters "
        f"(not {_listed(missing)}): {cause}. Make it from model.parameters() after "
        "model.to(device) and fully_shard(model)"
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _listed(named: dict[str, Any]) -> str:
    shown = [f"{name} {list(each.shape)}" for name, each in list(named.items())[:SHOWN]]
    return ", ".join(shown) + (", ..." if len(named) > SHOWN else "")


def check_batch(batch: Any, pair: bool) -> None:
    """What the first call brings; `pair`: the loss takes `(model(input), target)`."""
    if pair and (not isinstance(batch, (tuple, list)) or len(batch) != 2):
        raise UsageError(
            f"this loss_fn is called as loss_fn(model(input), target), so a batch is a pair "
            f"(input, target); this one is {_outline(batch)}. For other batches write "
            "def loss_fn(model, batch): ..."
        )
    check_filled(batch)


def check_filled(batch: Any) -> None:
    """The batch has samples."""
    for path, tensor in nests.paths(batch):
        if tensor.dim() and not tensor.shape[0]:
            raise UsageError(
                f"the batch is empty: {path} has shape {list(tensor.shape)}. Leave such batches "
                "out, or look at what the sampler and the filter of the data set let through"
            )
        if tensor.dim():
            return


def _outline(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a {type(batch).__name__} with {', '.join(map(repr, list(batch)[:5]))}"
    if isinstance(batch, Tensor):
        return f"one tensor of shape {list(batch.shape)}"
    length = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    return f"a {type(batch).__name__}{length}"


def check_loss(loss: Any) -> None:
    """The loss is one differentiable number."""
    if not isinstance(loss, Tensor):
        raise UsageError(
            f"the loss is a {type(loss).__name__}: it must be a 0-d tensor with its graph "
            "(no .item() in loss_fn)"
        )
    if loss.dim():
        raise UsageError(
            f"the loss has shape {list(loss.shape)}: it must be 0-d. Take .mean(), or leave "
            'out reduction="none"'
        )
    if not loss.is_floating_point():
        raise UsageError(
            f"the loss is {_dtype(loss)}: it must be floating point to have a gradient"
        )
    if not loss.requires_grad:
        raise UsageError(
            "the loss has no gradient: it was computed under torch.no_grad(), from detached "
            "tensors, or only from frozen parameters"
        )


def explain(error: Exception, model: nn.Module, batch: Any) -> UsageError | None:
    """The cause of what torch raised in forward, loss or backward; None where it is not clear."""
    if isinstance(error, UsageError) or is_out_of_memory(error):
        return None
    text = str(error)
    parameter = next(model.parameters(), None)
    if parameter is None:
        return None
    return _graph(text) or _device(text, parameter, batch) or _dtypes(text, parameter, batch)


def _graph(text: str) -> UsageError | None:
    if "grad can be implicitly created only for scalar outputs" in text:
        return UsageError("the loss is not 0-d: take .mean() of it")
    if "does not require grad and does not have a grad_fn" in text:
        return UsageError(
            "the loss has no gradient: it was computed under torch.no_grad(), from detached "
            "tensors, or only from frozen parameters"
        )
    return None


def _device(text: str, parameter: Tensor, batch: Any) -> UsageError | None:
    """Batch and model on different devices; torch says so in many ways, all with these words."""
    if "device" not in text and "should be the same" not in text and "Tensor for" not in text:
        return None
    for path, tensor in nests.paths(batch):
        if tensor.device != parameter.device:
            return UsageError(
                f"{path} {list(tensor.shape)} is on {tensor.device}, the model on "
                f"{parameter.device}: move the batch with flatout.to_device(batch), or let "
                "flatout.loader bring it there"
            )
    return None


_MISFIT = (
    "should be the same",
    "same dtype",
    "expected scalar type",
    "not implemented for",
    "must match the dtype",
    "target dtype",
    "Expected tensor for argument",
    "Expected floating point type",
    "expected m1 and m2 to have the same dtype",
)
_TOLD = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
}
"""What torch's messages call a dtype."""


def _dtypes(text: str, parameter: Tensor, batch: Any) -> UsageError | None:
    if not any(words in text for words in _MISFIT):
        return None
    found = list(nests.paths(batch))
    for path, tensor in found:
        name = f"{path} {list(tensor.shape)} is {_dtype(tensor)}"
        if tensor.dtype == torch.uint8 and tensor.dim() >= 3:
            return UsageError(
                f"{name}, the model's parameters are {_dtype(parameter)}: images go in as "
                f"floating point, such as {path}.float() / 255"
            )
        wide = torch.float64 in (tensor.dtype, parameter.dtype)
        named = _TOLD.get(tensor.dtype, "?") in text and _TOLD.get(parameter.dtype, "?") in text
        number = tensor.is_floating_point() or ("same dtype" in text and not tensor.is_complex())
        if number and tensor.dtype != parameter.dtype and (wide or named):
            return UsageError(
                f"{name}, the model's parameters are {_dtype(parameter)}: convert with "
                f"{path}.to({parameter.dtype})"
            )
    return _labels(text, found)


def _labels(text: str, found: list[tuple[str, Tensor]]) -> UsageError | None:
    """Class indices that are not int64."""
    if "Long" not in text and "nll_loss" not in text and "cross_entropy" not in text:
        return None
    target = next((each for each in reversed(found) if each[1].dim()), None)
    if target is None or target[1].dtype == torch.int64:
        return None
    path, tensor = target
    return UsageError(
        f"{path} {list(tensor.shape)} is {_dtype(tensor)}: class indices are int64, "
        f"such as {path}.long()"
    )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def parameter_names(model: nn.Module, parameters: Iterable[Tensor]) -> str:
    """The first of these parameters by name, for messages."""
    wanted = {id(parameter) for parameter in parameters}
    named = [name for name, each in model.named_parameters() if id(each) in wanted]
    return ", ".join(named[:SHOWN]) + (f" and {len(named) - SHOWN} more" if named[SHOWN:] else "")


def nonfinite_in(values: Any) -> bool:
    """Whether a nest holds NaN or Inf; waits for the device."""
    return any(
        tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
        for tensor in nests.tensors(values)
    )
