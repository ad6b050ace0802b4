"""torch.compile of the step's forward pass and loss, whole or block by block, and its undo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from flatout_agent.speedups import compiled_blocks
from flatout_agent.speedups.compiling import (
    Attempts,
    Code,
    cannot,
    missing,
    run_module,
)
from flatout_agent.speedups.repeated_blocks import alike_blocks, mostly_in
from flatout_agent.speedups.stand_in import StandIn, is_plain
from flatout_train.errors import UsageError
from flatout_train.out_of_memory import is_out_of_memory

LossCall = Callable[[Any], Tensor]
Loss = Callable[..., Tensor]
SMALLEST = 1 << 21
"""The fewest logits: with less, the loss is too small a part of a step to be worth compiling."""
_OWN: Loss = functional.cross_entropy
TUNED = "max-autotune-no-cudagraphs"
"""The mode of "tuned": each kernel is the fastest of several that Inductor times."""
SELDOM_PAYS = (
    "on the CPU it saves at most 5 % of a step and takes 10 to 20 s to start, which pays off after "
    "hundreds to thousands of steps; compile=True enables it"
)


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
) -> Compiled:
    """Compile `call` (batch -> 0-d loss), which runs `model` and the loss.

    "whole" (or True) makes one graph of model and loss. "blocks"
    compiles the repeated blocks, once for all of them, and cross entropy over many logits; the
    rest runs as written, so start-up is shorter. "auto" is "blocks" if the model mostly consists of
    repeated blocks, else "whole"; on the CPU, neither. "tuned" chooses in the same way, on the CPU
    too, with autotuned kernels: the longest start-up. If the compiler is missing or fails, the call
    runs as written and `note` gives the reason. torch.compile's modes with CUDA graphs are not
    used: `graph.whole_step` records more than they do. Raises UsageError for an unknown value.
    """
    known = ("auto", "blocks", "whole", "tuned")
    if not isinstance(choice, bool) and choice not in known:
        raise UsageError(f"compile={choice!r} is unknown: use {', '.join(known)}, True or False")
    if choice is False:
        return _as_written(call, "requested")
    if choice == "auto" and device.type == "cpu":
        return _as_written(call, SELDOM_PAYS)
    reason = cannot(model) or missing(device.type)
    if reason is not None:
        return _as_written(call, reason)
    blocks = alike_blocks(model)
    if choice == "blocks" and not blocks:
        return _as_written(call, "the model has no repeated blocks")
    mode = TUNED if choice == "tuned" else "default"
    if choice == "blocks" or (choice in ("auto", "tuned") and mostly_in(blocks, model)):
        return _compile_blocks(call, blocks, mode, device)
    return _compile_whole(call, mode, device)


def _nothing() -> None:
    pass


def _as_written(call: LossCall, reason: str) -> Compiled:
    return Compiled(call, "no", reason, _nothing, lambda: f"no: {reason}")


def _compile_whole(call: LossCall, mode: str, device: torch.device) -> Compiled:
    def whole(batch: Any) -> Tensor:
        return call(batch)

    code = Code(whole, mode, device.type)
    attempts = _Attempts([code])

    def compiled(batch: Any) -> Tensor:
        if attempts.given_up:
            return call(batch)
        try:
            return attempts.step(code, batch)
        except attempts.errors as error:
            attempts.give_up(error)
            return call(batch)

    return Compiled(
        compiled,
        "whole",
        "model and loss in one graph" + ("" if mode == "default" else f", {mode}"),
        attempts.close,
        lambda: attempts.note("whole"),
    )


def _compile_blocks(
    call: LossCall, groups: list[list[nn.Module]], mode: str, device: torch.device
) -> Compiled:
    codes = [Code(run_module, mode, device.type) for _ in groups]
    loss_code = Code(cross_entropy, mode, device.type)
    attempts = _Attempts([*codes, loss_code])
    region = LossRegion(_loss(attempts, loss_code))
    take_off = compiled_blocks.put_on(attempts, groups, codes)

    def compiled(batch: Any) -> Tensor:
        with region:
            return attempts.step(call, batch)

    def undo() -> None:
        take_off()
        attempts.close()

    kinds = ", ".join(f"{len(group)} x {type(group[0]).__name__}" for group in groups)
    kinds += "" if mode == "default" else f", {mode}"
    return Compiled(
        compiled,
        "blocks",
        kinds,
        undo,
        lambda: attempts.note("blocks and loss" if region.used else "blocks"),
    )


def _loss(attempts: _Attempts, code: Code) -> Callable[..., Tensor]:
    def loss(*args: Any, **kwargs: Any) -> Tensor:
        if attempts.given_up:
            return cross_entropy(*args, **kwargs)
        try:
            return code(*args, **kwargs)  # type: ignore[no-any-return]
        except attempts.errors as error:
            attempts.give_up(error)
            return cross_entropy(*args, **kwargs)

    return loss


class _Attempts(Attempts):
    """The attempts of one step, and what `note` says about them."""

    def __init__(self, codes: list[Any]) -> None:
        super().__init__()
        self.codes = codes
        self.listen()

    def step(self, compiled: LossCall, batch: Any) -> Tensor:
        """`run` for the step's own call; the caller's own error is not blamed on the code."""
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
        return f"{how}: {self.summary()}"


def cross_entropy(*args: Any, **kwargs: Any) -> Tensor:
    """Cross entropy as torch computes it, as a function for the compiler."""
    return _OWN(*args, **kwargs)


class LossRegion:
    """Within it, `torch.nn.functional.cross_entropy` is `compiled` where that pays.

    Blocks that are compiled one by one leave the loss as written. For a language model the loss is
    much of a step's memory traffic: 16-bit logits are cast to float32, and written and read several
    times; in one compiled region they are read twice and their gradient is written once.
    """

    def __init__(self, compiled: Loss) -> None:
        self.used = False
        """Whether a loss was computed by the compiled function."""

        def chosen(input: Any, target: Any, *args: Any, **kwargs: Any) -> Tensor:
            if not _pays(input, target):
                return _OWN(input, target, *args, **kwargs)
            self.used = True
            return compiled(input, target, *args, **kwargs)

        self._stand_in = StandIn(functional, {"cross_entropy": chosen})

    def __enter__(self) -> None:
        self._stand_in.hold()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stand_in.let_go()


def _pays(logits: Any, target: Any) -> bool:
    return (
        isinstance(logits, Tensor)
        and isinstance(target, Tensor)
        and is_plain(logits, target)
        and logits.numel() >= SMALLEST
        and logits.requires_grad
        and torch.is_grad_enabled()
    )
