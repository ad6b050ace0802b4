"""A copy of a model for evaluation on the CPU, which shares no tensor with the user's.

`copy.deepcopy` will not do: it copies everything a model holds (a Trainer, data sets), needs the
device's memory twice, and fails on locks and on tensors inside a graph. Here modules, tensors and
the plain containers that hold them are copied; everything else is shared.
"""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict
from typing import Any

import torch
from torch import nn

from flatout_agent.attach.chain import SLOT
from flatout_agent.capture.refusal import CannotCapture

WRAPPERS = ("DistributedDataParallel", "DataParallel")
SHARDED = ("FullyShardedDataParallel", "FSDPModule")
HALVES = (torch.float16, torch.bfloat16)
CONTAINERS = (list, tuple, dict, set, OrderedDict, defaultdict)
DEEPEST = 6


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module inside torch's wrappers."""
    while not isinstance(model, torch.jit.ScriptModule):
        inner = model._modules.get("_orig_mod")
        if inner is None and type(model).__name__ in WRAPPERS:
            inner = model._modules.get("module")
        if inner is None:
            break
        model = inner
    return model


def evaluation_copy(model: nn.Module) -> nn.Module:
    """The copy. Raises CannotCapture for modules that cannot be copied."""
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise CannotCapture(
                f"{type(module).__name__} is a TorchScript module, which torch.export cannot take",
                "give the model to the script without torch.jit",
            )
        if any(kind.__name__ in SHARDED for kind in type(module).__mro__):
            raise CannotCapture(
                "the weights are divided among several processes (FSDP)",
                "save them whole and name the file: flatout export --weights checkpoint.pt train.py"
                " with a script for one process",
            )
    copy: nn.Module = _Copying(model).of(model)
    for module in copy.modules():
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()
    copy.eval()
    return copy.requires_grad_(requires_grad=False)


class _Copying:
    def __init__(self, model: nn.Module) -> None:
        self._done: dict[int, Any] = {}
        self._modules = {id(module) for module in model.modules()}
        self._keep: list[Any] = []

    def of(self, module: nn.Module) -> Any:
        if id(module) in self._done:
            return self._done[id(module)]
        twin = self._done[id(module)] = module.__class__.__new__(module.__class__)
        # Not by setattr, as a module may have its own.
        for name, value in list(module.__dict__.items()):
            if name not in (SLOT, "_trainer", "_fabric"):
                twin.__dict__[name] = self._value(value, 0)
        if "_trainer" in module.__dict__:  # Lightning's: holds loaders, loggers, the optimizer
            twin.__dict__["_trainer"] = None
        if twin.__dict__.pop("_original_forward", None) is not None:  # Accelerate's precision
            twin.__dict__.pop("forward", None)
        return twin

    def _value(self, value: Any, depth: int) -> Any:
        if id(value) in self._done:
            return self._done[id(value)]
        if isinstance(value, nn.Module):
            return self.of(value)
        if isinstance(value, torch.Tensor):
            self._keep.append(value)  # its id stays its own
            if hasattr(value, "to_local") or hasattr(value, "__tensor_flatten__"):
                kind = type(value).__name__
                raise CannotCapture(
                    f"the model holds tensors of a kind of their own ({kind})",
                    "give the script plain tensors, or --weights with a checkpoint that has them",
                )
            if value.is_meta:
                raise CannotCapture(
                    "weights of the model are on the meta device: they hold no values"
                )
            dtype = torch.float32 if value.dtype in HALVES else value.dtype
            with torch.no_grad():
                plain = value.detach().to("cpu", dtype, copy=True)
                if plain.layout is torch.strided:
                    plain = plain.contiguous()
            self._done[id(value)] = copied = (
                nn.Parameter(plain, requires_grad=False)
                if isinstance(value, nn.Parameter)
                else plain
            )
            return copied
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if type(value) in CONTAINERS and depth < DEEPEST:
            if isinstance(value, dict):
                pairs = {key: self._value(member, depth + 1) for key, member in value.items()}
                if type(value) is defaultdict:
                    return defaultdict(value.default_factory, pairs)
                return type(value)(pairs)
            return type(value)([self._value(member, depth + 1) for member in value])
        return self._callable(value)

    def _callable(self, value: Any) -> Any:
        """Bind methods of a copied module to the copy."""
        if isinstance(value, types.MethodType) and id(value.__self__) in self._modules:
            return types.MethodType(value.__func__, self.of(value.__self__))  # type: ignore[arg-type]
        if type(value) is functools.partial:
            args = [self._value(argument, 1) for argument in value.args]
            return functools.partial(self._callable(value.func), *args, **value.keywords)
        return value
