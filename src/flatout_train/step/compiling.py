"""torch.compile of the step's forward pass and loss: whole or block by block, with the way back."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatout_agent.chain import Depth, Layer, compiled_by_user, model_call
from flatout_agent.speedups.compiling import Attempts, cannot, counters, fails_at_limit, missing
from flatout_agent.tracebacks import first_line
from flatout_train.errors import UsageError
from flatout_train.out_of_memory import is_out_of_memory
from flatout_train.step import loss_region
from flatout_train.step.recomputation import is_cache

LossCall = Callable[[Any], Tensor]
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
"""torch.compile's own modes; each may be asked for in place of "whole"."""
GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes that record CUDA graphs by themselves."""
WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""What each of them does beside that."""
TUNED = "max-autotune-no-cudagraphs"
"""What "tuned" compiles with: each kernel is the fastest of several that Inductor times."""
SELDOM_PAYS = (
    "on the CPU it gains up to 5 % a step and takes 10 to 20 s to start, which pays after hundreds "
    "to thousands of steps: compile=True"
)
FEWEST_BLOCKS = 3
MOSTLY = 0.75
"""Repeated blocks are compiled alone where they hold this share of the model's layers."""


@dataclass(frozen=True)
class Compiled:
    """The call to make instead of the plain one, and how it came to be."""

    call: LossCall
    """batch -> 0-d loss"""
    how: str
    """ "whole", "blocks" or "no" """
    reason: str
    undo: Callable[[], None]
    note: Callable[[], str]
    """How it went so far, in words."""


def choose(
    asked: str | bool,
    model: nn.Module,
    call: LossCall,
    device: torch.device,
    accumulate: int = 1,
) -> Compiled:
    """Compile `call` (batch -> 0-d loss), which runs `model` and the loss.

    "whole" (or True, or one of torch.compile's modes) makes one graph of model and loss. "blocks"
    compiles the blocks that repeat, once for all of them, and cross entropy over many logits; the
    rest runs as written: start-up is shorter. "auto" takes blocks where the model mostly consists
    of them, else the whole; on the CPU, neither. "tuned" takes the same, on the CPU too, with
    kernels chosen by timing them: the longest start-up. Where the compiler is missing or fails, the
    call runs as written and the reason is told. Gradients that several calls add up (`accumulate`,
    a batch that is split) rule out the modes that record CUDA graphs: then it is the mode without
    them. Raises UsageError for a word that is not known.
    """
    known = ("auto", "blocks", "whole", "tuned", *MODES)
    if not isinstance(asked, bool) and asked not in known:
        raise UsageError(f"compile={asked!r} is not known: it is {', '.join(known)}, True or False")
    if asked is False:
        return _as_written(call, "asked for")
    if asked == "auto" and device.type == "cpu":
        return _as_written(call, SELDOM_PAYS)
    reason = _cannot(model) or missing(torch, device.type)
    if reason is not None:
        return _as_written(call, reason)
    blocks = repeated_blocks(model)
    if asked == "blocks" and not blocks:
        return _as_written(call, "the model has no blocks of one kind that repeat")
    mode = TUNED if asked == "tuned" else asked if asked in MODES else "default"
    if asked == "blocks" or (asked in ("auto", "tuned") and _mostly(model, blocks)):
        return _blocks(call, blocks, mode, device)
    return _whole(call, mode, device, list(model.parameters()), adds_up=accumulate > 1)


def repeated_blocks(model: nn.Module) -> list[list[nn.Module]]:
    """Groups of at least three children of a ModuleList or Sequential that are alike.

    Alike: of one class, with parameters and buffers of the same names, shapes and dtypes. A group
    inside a block of another group does not count.
    """
    groups: list[list[nn.Module]] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        alike: dict[Any, list[nn.Module]] = {}
        for child in module.children():
            alike.setdefault(_kind(child), []).append(child)
        found = [
            group
            for group in alike.values()
            if len(group) >= FEWEST_BLOCKS and any(True for _ in group[0].children())
        ]
        groups += found
        inside.update(id(part) for group in found for block in group for part in block.modules())
    return groups


def _kind(block: nn.Module) -> Any:
    tensors = [*block.named_parameters(), *block.named_buffers()]
    return type(block), tuple((name, item.shape, item.dtype) for name, item in tensors)


def _mostly(model: nn.Module, blocks: list[list[nn.Module]]) -> bool:
    layers = [module for module in model.modules() if not any(True for _ in module.children())]
    ours = {id(part) for group in blocks for block in group for part in block.modules()}
    return bool(blocks) and sum(id(layer) in ours for layer in layers) >= MOSTLY * len(layers)


def _cannot(model: nn.Module) -> str | None:
    if any(compiled_by_user(module) for module in model.modules()):
        return "the script compiles the model or a part of it itself"
    return cannot(torch, model, model._call_impl)


def _nothing() -> None:
    pass


def _as_written(call: LossCall, reason: str) -> Compiled:
    return Compiled(call, "no", reason, _nothing, lambda: f"no: {reason}")


def _whole(
    call: LossCall, mode: str, device: torch.device, parameters: list[nn.Parameter], adds_up: bool
) -> Compiled:
    def whole(batch: Any) -> Tensor:
        return call(batch)

    code = _Code(whole, mode, device, adds_up)
    attempts = _Attempts([code])

    def compiled(batch: Any) -> Tensor:
        if attempts.given_up:
            return call(batch)
        # A split batch: this run would free the gradients of the last, which it is to add to.
        if code.graphs and any(each.grad is not None for each in parameters):
            code.leave_graphs()
        graphs = code.graphs
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        try:
            loss = attempts.step(code, batch)
        except attempts.errors as error:
            attempts.give_up(error)
            return call(batch)
        return loss.clone() if graphs else loss

    reason = "model and loss in one graph" + ("" if code.mode == "default" else f", {code.mode}")
    return Compiled(
        compiled,
        "whole",
        reason + code.told,
        attempts.close,
        lambda: attempts.note("whole") + code.told,
    )


def _blocks(
    call: LossCall, groups: list[list[nn.Module]], mode: str, device: torch.device
) -> Compiled:
    codes = [_Code(_block, mode, device) for _ in groups]
    loss_code = _Code(loss_region.cross_entropy, mode, device)
    attempts = _Attempts([*codes, loss_code])
    region = loss_region.LossRegion(_loss(attempts, loss_code))
    undo: list[Callable[[], None]] = [attempts.close]
    for group, code in zip(groups, codes, strict=True):
        change = _unchanged if _shares_keys(group) else _without_new_cache
        for block in group:
            layer = _layer(attempts, block, code, change)
            undo.append(model_call(block).wrap(Depth.COMPILE, layer))

    def compiled(batch: Any) -> Tensor:
        with region:
            return attempts.step(call, batch)

    def put_back() -> None:
        for take in undo:
            take()

    kinds = ", ".join(f"{len(group)} x {type(group[0]).__name__}" for group in groups)
    kinds += "" if mode == "default" else f", {mode}"
    return Compiled(
        compiled,
        "blocks",
        kinds,
        put_back,
        lambda: attempts.note("blocks and loss" if region.used else "blocks"),
    )


def _loss(attempts: _Attempts, code: _Code) -> Callable[..., Tensor]:
    def loss(*args: Any, **kwargs: Any) -> Tensor:
        if attempts.given_up:
            return loss_region.cross_entropy(*args, **kwargs)
        try:
            return code(*args, **kwargs)  # type: ignore[no-any-return]
        except attempts.errors as error:
            attempts.give_up(error)
            return loss_region.cross_entropy(*args, **kwargs)

    return loss


def _block(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return block._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]


def _layer(
    attempts: _Attempts, block: nn.Module, code: _Code, change: Callable[[Any], Any]
) -> Layer:
    """For the block's own call: compiled in training, as written in evaluation.

    `change` is for each argument of the compiled call.
    """

    def around(own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if attempts.given_up or not (block.training and torch.is_grad_enabled()):
                return own(*args, **kwargs)
            given = tuple(map(change, args))
            named = {name: change(value) for name, value in kwargs.items()}
            try:
                if attempts.inside:
                    return code(block, *given, **named)
                # recomputed in the backward pass, or called beside the step
                return attempts.run(code, block, *given, **named)
            except attempts.errors as error:
                attempts.give_up(error)
                return own(*args, **kwargs)

        return call

    return around


def _unchanged(value: Any) -> Any:
    return value


def _without_new_cache(value: Any) -> Any:
    """None for a generation cache that holds nothing yet.

    Hugging Face models make one in training too. A block would write to it under its own number,
    and torch compiles a function anew for each number that it reads, up to its limit of 8.
    """
    if not is_cache(value):
        return value
    try:
        return None if value.get_seq_length() == 0 else value
    except Exception:  # a cache without lengths
        return value


def _shares_keys(blocks: list[nn.Module]) -> bool:
    """Some blocks read from the cache what others wrote in the same pass (Gemma 3n)."""
    parts = (part for block in blocks for part in block.modules())
    return any(getattr(part, "is_kv_shared_layer", False) is True for part in parts)


class _Code:
    """A function for the compiler, with a code object of its own.

    Torch counts recompilations, and remembers what it gave up, by code object.
    """

    def __init__(
        self, function: Any, mode: str, device: torch.device, adds_up: bool = False
    ) -> None:
        self.function, self.mode, self.device = function, mode, device
        self.graphs = device.type == "cuda" and mode in GRAPH_MODES
        """It records CUDA graphs."""
        self.told = ""
        """What is not as it was asked for, in words."""
        if adds_up and self.graphs:
            self.leave_graphs()
        else:
            self.renew()

    def renew(self) -> None:
        """Forget what was compiled."""
        found = self.function
        code = found.__code__.replace()
        fresh = types.FunctionType(code, found.__globals__, closure=found.__closure__)
        self.compiled = torch.compile(fresh, **self._settings())

    def _settings(self) -> dict[str, Any]:
        if self.device.type != "cpu":
            return {} if self.mode == "default" else {"mode": self.mode}
        options = torch._inductor.list_mode_options(self.mode)
        # Inductor's own random numbers are slow on a CPU; these are also those of eager.
        return {"options": {**options, "fallback_random": True}}

    def leave_graphs(self) -> None:
        """Go on in the mode that does the same without CUDA graphs.

        A run of theirs frees what the run before gave: also gradients that are to be added to. That
        ends in an error, or in a gradient of the last run alone.
        """
        asked, self.mode, self.graphs = self.mode, WITHOUT_GRAPHS[self.mode], False
        self.told = f"; {self.mode} for {asked}: CUDA graphs write over gradients that add up"
        self.renew()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(*args, **kwargs)


class _Attempts(Attempts):
    """Calls of compiled code; what the compiler cannot do runs as written."""

    def __init__(self, codes: list[_Code]) -> None:
        super().__init__(torch)
        self.codes = codes
        self.calls = 0
        self.errors = torch._dynamo.exc.TorchDynamoException
        self.before = counters()
        # Reading a setting takes 10 us: once is enough.
        dynamo, functorch = torch._dynamo.config, torch._functorch.config
        self.suppressed = dynamo.suppress_errors
        self.suppress = not fails_at_limit(dynamo)
        self.lazy = hasattr(functorch, "force_non_lazy_backward_lowering")

    def give_up(self, error: BaseException) -> None:
        """From now on as written. With errors suppressed, only those come here that must."""
        self.given_up, self.failed = True, first_line(error)

    def step(self, compiled: LossCall, batch: Any) -> Tensor:
        """`run` for the step's own call; an error of the caller's leaves nothing behind."""
        known = self.failed
        try:
            return self.run(compiled, batch)  # type: ignore[no-any-return]
        except self.errors:
            raise
        except Exception as error:
            # Tracing may have met the caller's own error, and the compiler given up on it for good.
            if self.failed != known or not is_out_of_memory(error):
                self.failed = known
                for code in self.codes:
                    code.renew()
            raise

    def run(self, compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call in which the compiler's errors do not come out."""
        counted = torch._dynamo.utils.counters["stats"]
        before = counted["unique_graphs"]
        # What the compiler cannot do runs as written, without running twice what had begun; and
        # it is to find out in the forward pass, since a backward pass cannot be left half way.
        torch._dynamo.config.suppress_errors = self.suppress
        if self.lazy:
            torch._functorch.config.force_non_lazy_backward_lowering = True
        self.inside = True
        try:
            output = compiled(*args, **kwargs)
        finally:
            self.inside = False
            torch._dynamo.config.suppress_errors = self.suppressed
            if self.lazy:
                torch._functorch.config.force_non_lazy_backward_lowering = False
            self.graphs_made += counted["unique_graphs"] - before
        self.calls += 1
        return output

    def note(self, how: str) -> str:
        """How it went so far, in words."""
        if self.given_up or (self.failed and not self.graphs_made):
            return f"no: the compiler failed: {self.failed}"
        if self.limit:
            return f"{how}: recompiled until torch's limit, then as written: inputs vary too much"
        if not self.calls:
            return f"{how}: not called yet"
        if not self.graphs_made:
            return "no: no graph was compiled"
        now = counters()
        recompiled, breaks = (max(0, b - a) for a, b in zip(self.before, now, strict=True))
        told = (
            f"{how}: {self.graphs_made} graphs, {recompiled} recompilations, {breaks} graph breaks"
        )
        return f"{told}; a part failed: {self.failed}" if self.failed else told
