"""`logits="chunked"`: a model's head and cross entropy in chunks, so that no logits are stored.

Within a step the head, a linear layer with many outputs, returns `DeferredLogits`. Cross entropy
computes them chunk by chunk; any other use computes them as the layer would have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flatout_agent.attach.chain import Depth, compiled_by_user, model_call
from flatout_agent.attach.tracebacks import first_line
from flatout_agent.speedups import forward_state
from flatout_agent.speedups.repeated_blocks import alike_blocks
from flatout_train.errors import UsageError
from flatout_train.out_of_memory import is_out_of_memory
from flatout_train.step import chunked_loss, ranks
from flatout_train.step.deferred_logits import Product, packing
from flatout_train.step.loss_region import SMALLEST

LossCall = Callable[[Any], Tensor]
NAMES = ("stored", "chunked")
GUARDED_CALLS = 2
"""Calls in which an error falls back to stored logits: those before a step is recorded."""
_EVERY_MODULE = nn.modules.module
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def check(logits: str) -> None:
    """Raises UsageError for an unknown value."""
    if logits not in NAMES:
        raise UsageError(f'logits={logits!r} is unknown: use "stored" or "chunked"')


class Logits:
    """How a step's logits are computed; `call` is the step's loss of a batch."""

    def __init__(
        self,
        choice: str,
        model: nn.Module,
        call: LossCall,
        how: str,
    ) -> None:
        """`how`: what is compiled, "whole", "blocks" or "no"."""
        self.call = call
        self._model, self._own = model, call
        self._stored = "as written"
        """Why the logits are stored; empty if they are not."""
        self._undo: Callable[[], None] = lambda: None
        if choice == "stored":
            return
        self._inside = False
        self._guarded_calls = GUARDED_CALLS
        self._used = self._refused = ""
        self._products: list[Product] = []
        self._name, self._head = head(model)
        self._stored = _cannot(model, how) or ("" if self._head else "the model has no head")
        if self._head is not None and not self._stored:
            self._slope = _Compiled() if how == "blocks" else chunked_loss.slope
            self._undo = model_call(self._head).wrap(Depth.COMPILE, self._layer)
            self.call = self._guarded

    def note(self) -> str:
        """What is done with the logits, and why."""
        if self._stored:
            return f"stored: {self._stored}"
        if self._used and self._refused:
            return f"chunked: {self._used}; computed once more: {self._refused}"
        if self._refused:
            return f"stored: {self._refused}"
        return f"chunked: {self._used or 'not called yet'}"

    def undo(self) -> None:
        """Restore the head."""
        self._undo()

    def _layer(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._inside or self._stored or len(args) != 1 or kwargs:
                return own(*args, **kwargs)
            assert self._head is not None
            reason = _unfit(self._head, args[0])
            if reason is not None:
                self._refuse(reason)
                return own(*args)
            weight, bias = self._head.weight, self._head.bias
            product = Product(args[0], weight, bias, self._slope, self._refuse, self._use)
            self._products.append(product)
            return product.output()

        return call

    def _refuse(self, reason: str) -> None:
        self._refused = reason

    def _use(self, rows: int, columns: int) -> None:
        step = chunked_loss.chunk_rows(rows, columns)
        self._used = f"{self._name} and loss, {-(-rows // step)} chunks of {step} rows"

    def _guarded(self, batch: Any) -> Tensor:
        """The loss of a batch; the first calls fall back to stored logits after an error."""
        if not self._guarded_calls or self._stored:
            return self._deferred(batch)
        restore = forward_state.keep([self._model])
        try:
            loss = self._deferred(batch)
            self._guarded_calls -= 1
            return loss
        except Exception as error:
            if is_out_of_memory(error) or not self._tried:
                raise
            failure = first_line(error)
        restore()
        loss = self._own(batch)  # if this fails too, the error is the program's own
        self._stored = failure
        return loss

    def _deferred(self, batch: Any) -> Tensor:
        self._tried, self._inside = False, True
        self._used = self._refused = ""
        try:
            loss = self._own(batch)
            for product in self._products:
                product.compute("the program keeps them beyond the loss")
            return loss
        finally:
            self._inside = False
            self._tried = bool(self._products)
            self._products.clear()


def head(model: nn.Module) -> tuple[str, nn.Linear | None]:
    """Name and module of the layer that computes the logits, or None if the model has none.

    It is the widest linear layer outside repeated blocks, the last one of equal width. A layer that
    is not wider than its input does not count.
    """
    blocks = alike_blocks(model)
    inside = {id(part) for group in blocks for block in group for part in block.modules()}
    widest: tuple[str, nn.Linear | None] = "", None
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) or id(module) in inside:
            continue
        width = 0 if widest[1] is None else widest[1].out_features
        if module.out_features >= max(width, module.in_features + 1):
            widest = name or "the model", module
    return widest


def _cannot(model: nn.Module, how: str) -> str | None:
    """Why this model's head stays as it is."""
    if how == "whole":
        return 'head and loss are compiled into one graph; compile="blocks" leaves them apart'
    if ranks.of(model) is not None:
        return "other ranks train the same model"
    for module in model.modules():
        if compiled_by_user(module) or type(module).__name__ == "OptimizedModule":
            return "the script compiles the model or a part of it itself"
        if type(module).__name__ in ("DataParallel", "FullyShardedDataParallel"):
            return f"the model is wrapped in {type(module).__name__}"
        if isinstance(module, torch.jit.ScriptModule):
            return "a part of the model is a ScriptModule"
    return None


def _unfit(layer: nn.Linear, rows: Any) -> str | None:
    """Why this call of the head runs as written."""
    if type(layer).forward is not nn.Linear.forward or "forward" in vars(layer):
        return "the head computes more than a linear layer"
    hooked = any(getattr(layer, name) for name in _HOOKS)
    if hooked or any(getattr(_EVERY_MODULE, f"_global{name}", None) for name in _HOOKS):
        return "the head has a hook"
    tensors = [rows, layer._parameters.get("weight")]
    if layer._parameters.get("bias") is not None:
        tensors.append(layer._parameters["bias"])
    if not all(map(_is_ordinary, tensors)) or len({tensor.device for tensor in tensors}) > 1:
        return "the head's weight or input is not an ordinary tensor"
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return "the head is traced"
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
        return "no gradient is needed"
    if not _have_one_dtype(tensors):
        return "the head's input and weight differ in dtype"
    if rows.dim() < 2 or rows.shape[-1] != layer.weight.shape[1]:
        return "the head's input has the wrong shape"
    if packing() is not None:
        return packing()
    count = rows.shape[:-1].numel() * len(layer.weight)
    if count < SMALLEST:
        return f"{count:,} logits are too few (below {SMALLEST:,})"
    return None


def _is_ordinary(tensor: Any) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.is_floating_point()
        and not tensor.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and torch.autograd.forward_ad._current_level < 0
    )


def _have_one_dtype(tensors: list[Tensor]) -> bool:
    """Whether they have one dtype, or autocast gives them one."""
    kinds, device = {tensor.dtype for tensor in tensors}, tensors[0].device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.float64 not in kinds
    return len(kinds) == 1


class _Compiled:
    """The slope of a chunk in one compiled kernel; as written if the compiler fails."""

    def __init__(self) -> None:
        self._code: Any = torch.compile(chunked_loss.slope_for_compiler)

    def __call__(
        self, logits: Tensor, index: Tensor, smoothing: float, wide: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        if self._code is not None:
            try:
                result: tuple[Tensor, Tensor] = self._code(logits, index, smoothing, wide)
                return result
            except torch._dynamo.exc.TorchDynamoException:
                self._code = None
        return chunked_loss.slope(logits, index, smoothing, wide)
