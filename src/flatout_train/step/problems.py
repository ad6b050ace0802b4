"""Possible mistakes in the setup of a training step, each named and with its fix.

Checked when the step is built and on its first call, never on each call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatout_agent.speedups import nests
from flatout_train.errors import UsageError
from flatout_train.out_of_memory import is_out_of_memory

NONFINITE = ("stop", "skip")
WEIGH = ("samples", "tokens", "sum")
SHOWN = 3
"""Parameters named in a message."""
MOST = 8
"""Tensors of a batch that are told with an error."""


@dataclass(frozen=True)
class Options:
    """The options of `train_step` that can be checked by themselves; UsageError for a bad value."""

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
                f"accumulate={count!r}: pass the number of calls per optimizer step, 1 or more"
            )
        if self.weigh not in WEIGH and not callable(self.weigh):
            raise UsageError(
                f"weigh={self.weigh!r} is unknown: use {_quoted(WEIGH)} or a function of the batch"
            )
        if self.clip_norm is not None and not _number(self.clip_norm) > 0:
            raise UsageError(
                f"clip_norm={self.clip_norm!r}: pass the maximum gradient norm, a number above 0"
            )
        if self.ema is not None and not 0 < _number(self.ema) < 1:
            raise UsageError(f"ema={self.ema!r}: pass a decay between 0 and 1, such as 0.999")
        if self.nonfinite not in NONFINITE:
            raise UsageError(f"nonfinite={self.nonfinite!r} is unknown: use {_quoted(NONFINITE)}")
        for name in ("graph", "recompute"):
            value = getattr(self, name)
            if value != "auto" and not isinstance(value, bool):
                raise UsageError(f'{name}={value!r} is unknown: use "auto", True or False')


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def check_kinds(model: Any, loss_fn: Any, optimizer: Any, scheduler: Any) -> None:
    """Check that each argument is of the right kind; UsageError if one is not."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is a {type(model).__name__}: it must be a torch.nn.Module")
    if loss_fn is not None and not callable(loss_fn):
        raise UsageError(f"loss_fn is a {type(loss_fn).__name__}: it must be callable, or None")
    if loss_fn is not None and not _takes_two(loss_fn):
        raise UsageError(
            "loss_fn does not take two arguments: write it as loss_fn(output, target), or as "
            "loss_fn(model, batch)"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"optimizer is a {type(optimizer).__name__}: it must be a torch.optim.Optimizer"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(
            "LBFGS evaluates the loss several times per step: write its loop by hand, with a "
            "closure, or use another optimizer"
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
        raise UsageError(
            f"scheduler is a {type(scheduler).__name__}: it has no step(). Pass a scheduler of "
            "torch.optim.lr_scheduler, or one like it"
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UsageError("the scheduler belongs to another optimizer: create it with this one")


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        called = function.forward if isinstance(function, nn.Module) else function
        inspect.signature(called).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # functions written in C may have no signature
        return True
    return True


def check_parameters(model: nn.Module, loss_fn: Any, optimizer: torch.optim.Optimizer) -> None:
    """Check that the optimizer holds exactly the model's trainable parameters.

    Raises UsageError, with the names of parameters, if it does not.
    """
    named = dict(model.named_parameters())
    own = {id(parameter) for parameter in named.values()}
    if isinstance(loss_fn, nn.Module):
        own |= {id(parameter) for parameter in loss_fn.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    ids = {id(parameter) for parameter in held}
    trainable = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    if not trainable:
        raise UsageError(
            "the model has no trainable parameters: set requires_grad=True on those to train"
            if named
            else "the model has no parameters: there is nothing to train"
        )
    for name, parameter in trainable.items():
        if parameter.device.type == "meta":
            there = "cuda" if torch.cuda.is_available() else "cpu"
            raise UsageError(
                f"{name} is on the meta device and has no values: materialise it first with "
                f'model.to_empty(device="{there}"), then load or initialise the weights'
            )
    missing = {name: parameter for name, parameter in trainable.items() if id(parameter) not in ids}
    foreign = [parameter for parameter in held if id(parameter) not in own]
    if missing and foreign:
        amount = "none" if len(missing) == len(trainable) else "not all"
        raise UsageError(
            f"the optimizer holds {amount} of the model's trainable parameters (not "
            f"{_listed(missing)}): it was created for another model, or before this one was moved, "
            "sharded or given other tensors. Create it from model.parameters() after "
            "model.to(device) and fully_shard(model)"
        )
    if missing:
        raise UsageError(
            f"the optimizer lacks {len(missing)} of the model's parameters: {_listed(missing)}. "
            "Add them to it, or freeze them with requires_grad_(False)"
        )


def _listed(named: dict[str, Any]) -> str:
    shown = [f"{name} {list(parameter.shape)}" for name, parameter in list(named.items())[:SHOWN]]
    return ", ".join(shown) + (", ..." if len(named) > SHOWN else "")


def check_batch(batch: Any, pair: bool) -> None:
    """Check the first batch; `pair`: the loss takes `(model(input), target)`.

    Raises UsageError for a batch that is no pair, or is empty.
    """
    if pair and (not isinstance(batch, (tuple, list)) or len(batch) != 2):
        raise UsageError(
            f"this loss_fn is called as loss_fn(model(input), target), so a batch must be a pair "
            f"(input, target); this batch is {_outline(batch)}. For other batches write "
            "def loss_fn(model, batch): ..."
        )
    check_filled(batch)


def check_filled(batch: Any) -> None:
    """Check that the batch has samples; UsageError if it is empty."""
    for path, tensor in nests.paths(batch):
        if tensor.dim() and not tensor.shape[0]:
            raise UsageError(
                f"the batch is empty: {path} has shape {list(tensor.shape)}. Drop such batches, "
                "or check what the sampler and the filter of the data set let through"
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
    """Check that the loss is one differentiable number; UsageError if it is not."""
    if not isinstance(loss, Tensor):
        raise UsageError(
            f"the loss is a {type(loss).__name__}: it must be a 0-d tensor with its graph "
            "(no .item() in loss_fn)"
        )
    if loss.dim():
        raise UsageError(
            f"the loss has shape {list(loss.shape)}: it must be 0-d. Return its .mean(), or drop "
            'reduction="none"'
        )
    if not loss.is_floating_point():
        raise UsageError(
            f"the loss is {_dtype(loss)}: it must be floating-point to have a gradient"
        )
    if not loss.requires_grad:
        raise UsageError(
            "the loss has no gradient: it was computed under torch.no_grad(), from detached "
            "tensors, or only from frozen parameters. Compute it from the model's output in "
            "training mode"
        )


def add_facts(error: Exception, model: nn.Module, batch: Any) -> None:
    """Add to an error of forward, loss or backward what torch's message lacks: batch and model.

    Shapes, dtypes and devices beside each other show which of them does not fit.
    """
    if isinstance(error, UsageError) or is_out_of_memory(error):
        return
    tensors = list(nests.paths(batch))
    shown = [f"{path} {list(tensor.shape)} {_place(tensor)}" for path, tensor in tensors[:MOST]]
    rest = f" and {len(tensors) - MOST} more" if tensors[MOST:] else ""
    parameter = _place(next(model.parameters()))
    error.add_note(
        f"flatout.train_step: the batch is {', '.join(shown) or 'without tensors'}{rest}; the "
        f"model's parameters are {parameter}"
    )


def _place(tensor: Tensor) -> str:
    return f"{_dtype(tensor)} on {tensor.device}"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def parameter_names(model: nn.Module, parameters: Iterable[Tensor]) -> str:
    """The first of these parameters by name, for messages."""
    wanted = {id(parameter) for parameter in parameters}
    named = [name for name, parameter in model.named_parameters() if id(parameter) in wanted]
    return ", ".join(named[:SHOWN]) + (f" and {len(named) - SHOWN} more" if named[SHOWN:] else "")
