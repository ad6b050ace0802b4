"""torch.compile of the step's forward pass and loss, whole or block by block, and its undo."""

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
"""torch.compile's own modes; each may be requested in place of "whole"."""
GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes that capture CUDA graphs themselves."""
WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""The equivalent of each without CUDA graphs."""
TUNED = "max-autotune-no-cudagraphs"
"""The mode of "tuned": each kernel is the fastest of several that Inductor times."""
SELDOM_PAYS = (
    "on the CPU it saves at most 5 % of a step and takes 10 to 20 s to start, which pays off after "
    "hundreds to thousands of steps; compile=True enables it"
)
FEWEST_BLOCKS = 3
MOSTLY = 0.75
"""Only the repeated blocks are compiled where they hold this share of the model's layers."""


@dataclass(frozen=True)
class Compiled:
    """The call that replaces the plain one, and how it was chosen."""

    call: LossCall
    """batch -> 0-d loss"""
    how: str
    """ "whole", "blocks" or "no" """
    reason: str
    undo: Callable[[], None]
    note: Callable[[], str]
    """The state of compilation so far, as text."""


def choose(
    choice: str | bool,
    model: nn.Module,
    call: LossCall,
    device: torch.device,
    accumulate: int = 1,
) -> Compiled:
    """Compile `call` (batch -> 0-d loss), which runs `model` and the loss.

    "whole" (or True, or one of torch.compile's modes) makes one graph of model and loss. "blocks"
    compiles the repeated blocks, once for all of them, and cross entropy over many logits; the
    rest runs as written, so start-up is shorter. "auto" is "blocks" where the model mostly consists
    of repeated blocks, else "whole"; on the CPU, neither. "tuned" chooses in the same way, on the
    CPU too, with autotuned kernels: the longest start-up. Where the compiler is missing or fails,
    the call runs as written and `note` gives the reason. Gradients that accumulate over several
    calls (`accumulate`, a batch that is split) rule out the modes that capture CUDA graphs: the
    equivalent mode without them is used. Raises UsageError for an unknown value.
    """
    known = ("auto", "blocks", "whole", "tuned", *MODES)
    if not isinstance(choice, bool) and choice not in known:
        raise UsageError(f"compile={choice!r} is unknown: use {', '.join(known)}, True or False")
    if choice is False:
        return _as_written(call, "requested")
    if choice == "auto" and device.type == "cpu":
        return _as_written(call, SELDOM_PAYS)
    reason = _cannot(model) or missing(device.type)
    if reason is not None:
        return _as_written(call, reason)
    blocks = repeated_blocks(model)
    if choice == "blocks" and not blocks:
        return _as_written(call, "the model has no repeated blocks")
    mode = TUNED if choice == "tuned" else choice if choice in MODES else "default"
    if choice == "blocks" or (choice in ("auto", "tuned") and _mostly(model, blocks)):
        return _compile_blocks(call, blocks, mode, device)
    return _compile_whole(call, mode, device, list(model.parameters()), adds_up=accumulate > 1)


def repeated_blocks(model: nn.Module) -> list[list[nn.Module]]:
    """Groups of at least three equivalent children of a ModuleList or Sequential.

    Equivalent: of one class, with parameters and buffers of the same names, shapes and dtypes. A
    group inside a block of another group does not count.
    """
    groups: list[list[nn.Module]] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        alike: dict[Any, list[nn.Module]] = {}
        for child in module.children():
            alike.setdefault(_kind(child), []).append(child)
        repeated = [
            group
            for group in alike.values()
            if len(group) >= FEWEST_BLOCKS and any(True for _ in group[0].children())
        ]
        groups += repeated
        inside.update(id(part) for group in repeated for block in group for part in block.modules())
    return groups


def _kind(block: nn.Module) -> Any:
    tensors = [*block.named_parameters(), *block.named_buffers()]
    return type(block), tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors)


def _mostly(model: nn.Module, blocks: list[list[nn.Module]]) -> bool:
    layers = [module for module in model.modules() if not any(True for _ in module.children())]
    ours = {id(part) for group in blocks for block in group for part in block.modules()}
    return bool(blocks) and sum(id(layer) in ours for layer in layers) >= MOSTLY * len(layers)


def _cannot(model: nn.Module) -> str | None:
    if any(compiled_by_user(module) for module in model.modules()):
        return "the script compiles the model or a part of it itself"
    return cannot(model, model._call_impl)


def _nothing() -> None:
    pass


def _as_written(call: LossCall, reason: str) -> Compiled:
    return Compiled(call, "no", reason, _nothing, lambda: f"no: {reason}")


def _compile_whole(
    call: LossCall, mode: str, device: torch.device, parameters: list[nn.Parameter], adds_up: bool
) -> Compiled:
    def whole(batch: Any) -> Tensor:
        return call(batch)

    code = _Code(whole, mode, device, adds_up)
    attempts = _Attempts([code])

    def compiled(batch: Any) -> Tensor:
        if attempts.given_up:
            return call(batch)
        # A split batch: this run would free the gradients of the last one, which it must add to.
        if code.graphs and any(parameter.grad is not None for parameter in parameters):
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
        reason + code.mode_note,
        attempts.close,
        lambda: attempts.note("whole") + code.mode_note,
    )


def _compile_blocks(
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
    """The layer around the block's own call: compiled in training, as written in evaluation.

    `change` is applied to each argument of the compiled call.
    """

    def around(own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if attempts.given_up or not (block.training and torch.is_grad_enabled()):
                return own(*args, **kwargs)
            changed_args = tuple(map(change, args))
            changed_kwargs = {name: change(value) for name, value in kwargs.items()}
            try:
                if attempts.inside:
                    return code(block, *changed_args, **changed_kwargs)
                # recomputed in the backward pass, or called beside the step
                return attempts.run(code, block, *changed_args, **changed_kwargs)
            except attempts.errors as error:
                attempts.give_up(error)
                return own(*args, **kwargs)

        return call

    return around


def _unchanged(value: Any) -> Any:
    return value


def _without_new_cache(value: Any) -> Any:
    """None for a generation cache that is still empty.

    Hugging Face models create one in training too. A block would write to it under its own index,
    and torch recompiles a function for each integer that it reads, up to its limit of 8.
    """
    if not is_cache(value):
        return value
    try:
        return None if value.get_seq_length() == 0 else value
    except Exception:  # a cache without lengths
        return value


def _shares_keys(blocks: list[nn.Module]) -> bool:
    """Whether blocks read from the cache what others wrote in the same pass (Gemma 3n)."""
    parts = (part for block in blocks for part in block.modules())
    return any(getattr(part, "is_kv_shared_layer", False) is True for part in parts)


class _Code:
    """A function for the compiler, with a code object of its own.

    torch counts recompilations, and remembers which functions it gave up on, by code object.
    """

    def __init__(
        self, function: Any, mode: str, device: torch.device, adds_up: bool = False
    ) -> None:
        self.function, self.mode, self.device = function, mode, device
        self.graphs = device.type == "cuda" and mode in GRAPH_MODES
        """It captures CUDA graphs."""
        self.mode_note = ""
        """How the mode differs from the requested one, as text; empty: it does not."""
        if adds_up and self.graphs:
            self.leave_graphs()
        else:
            self.renew()

    def renew(self) -> None:
        """Forget what was compiled."""
        function = self.function
        code = function.__code__.replace()
        fresh = types.FunctionType(code, function.__globals__, closure=function.__closure__)
        self.compiled = torch.compile(fresh, **self._settings())

    def _settings(self) -> dict[str, Any]:
        if self.device.type != "cpu":
            return {} if self.mode == "default" else {"mode": self.mode}
        options = torch._inductor.list_mode_options(self.mode)
        # Inductor's own random numbers are slow on a CPU; the fallback's equal those of eager mode.
        return {"options": {**options, "fallback_random": True}}

    def leave_graphs(self) -> None:
        """Switch to the equivalent mode without CUDA graphs.

        Each run of a graph frees the outputs of the previous run, including gradients that still
        accumulate. That ends in an error, or in the gradient of the last run alone.
        """
        graph_mode, self.mode, self.graphs = self.mode, WITHOUT_GRAPHS[self.mode], False
        self.mode_note = (
            f"; {self.mode} for {graph_mode}: CUDA graphs write over gradients that add up"
        )
        self.renew()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(*args, **kwargs)


class _Attempts(Attempts):
    """Calls of compiled code; what the compiler cannot compile runs as written."""

    def __init__(self, codes: list[_Code]) -> None:
        super().__init__()
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
        """Run as written from now on. Few errors get this far: most are suppressed."""
        self.given_up, self.failed = True, first_line(error)

    def step(self, compiled: LossCall, batch: Any) -> Tensor:
        """`run` for the step's own call; an error of the caller's is not held against the code."""
        known = self.failed
        try:
            return self.run(compiled, batch)  # type: ignore[no-any-return]
        except self.errors:
            raise
        except Exception as error:
            # Tracing may have hit the caller's own error, and the compiler given up on it for good.
            if self.failed != known or not is_out_of_memory(error):
                self.failed = known
                for code in self.codes:
                    code.renew()
            raise

    def run(self, compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call in which the compiler's errors are suppressed."""
        counted = torch._dynamo.utils.counters["stats"]
        before = counted["unique_graphs"]
        # What cannot be compiled runs as written, without running twice what had begun; and the
        # compiler must find out in the forward pass, since a backward pass cannot be abandoned.
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
        """The state of compilation so far, as text."""
        if self.given_up or (self.failed and not self.graphs_made):
            return f"no: the compiler failed: {self.failed}"
        if self.limit:
            return f"{how}: as written after torch's recompilation limit: inputs vary too much"
        if not self.calls:
            return f"{how}: not called yet"
        if not self.graphs_made:
            return "no: no graph was compiled"
        now = counters()
        recompiled, breaks = (max(0, b - a) for a, b in zip(self.before, now, strict=True))
        summary = (
            f"{how}: {self.graphs_made} graphs, {recompiled} recompilations, {breaks} graph breaks"
        )
        return f"{summary}; a part failed: {self.failed}" if self.failed else summary
