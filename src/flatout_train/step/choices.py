"""What a step will do on this machine: each choice made once, with its reason and the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatout_agent.speedups.channels_last import convolutions
from flatout_train import plans
from flatout_train.step import chunked_head, compiling, optimizing
from flatout_train.step import layout as layouts
from flatout_train.step.layout import Layout
from flatout_train.step.precision import Precision
from flatout_train.step.precision import choose as choose_precision
from flatout_train.step.update import let_round


@dataclass
class Choices:
    """The words that were asked for; then what became of them."""

    precision: str
    compile: str | bool
    layout: str
    graph: str | bool
    accumulate: int = 1
    logits: str = "stored"
    unfused: str | None = None
    """Why the optimizer keeps its own kernel; None: it gets the fused one."""
    notes: dict[str, str] = field(default_factory=dict)
    undos: list[Callable[[], None]] = field(default_factory=list)
    logits_note: Callable[[], str] = lambda: ""
    """What is done with the logits, and why."""
    _unfuse: Callable[[], None] | None = None

    def follow(self, path: str | Path | None) -> None:
        """Let a plan decide what was left to "auto", and do what it does at the start."""
        if path is None:
            if self.precision == "fp32" and self.compile is False:
                self.unfused = 'precision="fp32" with compile=False keeps each bit'
                self.layout = "contiguous" if self.layout == "auto" else self.layout
            return
        plan = plans.read(path)
        for name in ("precision", "compile", "layout", "graph"):
            found = getattr(plan, name)
            if found is not None and getattr(self, name) == "auto":
                setattr(self, name, found)
        self.unfused = None if plan.fused else "the plan has it so"
        started = plans.begin(plan)
        self.undos.append(started)
        unused = dict(plan.ignored) | started.declined
        told = "; ".join(f"{name}: {reason}" for name, reason in unused.items())
        self.notes["plan"] = f"{path} (not used: {told})" if told else str(path)

    def begin_settings(self, model: nn.Module, device: torch.device) -> None:
        """What a process is told once, where no plan decides.

        On the CPU freed memory is kept for the next step. On CUDA cuDNN measures which kernels are
        fastest for each shape of a convolution, unless each bit is to stay.
        """
        if "plan" in self.notes:
            return
        if device.type == "cpu":
            self._begin("allocator", "glibc keeps freed memory")
        elif device.type == "cuda" and self.unfused is None and convolutions(torch, model):
            self._begin("cudnn-benchmark", "the fastest for each shape are measured")

    def _begin(self, boost: str, done: str) -> None:
        started = plans.begin(plans.StepPlan(starts=((boost, {}),)))
        self.undos.append(started)
        reason = started.declined.get(boost)
        self.notes[boost] = f"as it is: {reason}" if reason else done

    def place(self, model: nn.Module) -> Layout:
        """The memory layout."""
        chosen = layouts.choose(self.layout, model)
        self.undos.append(chosen.undo)
        return chosen

    def reduce(self, model: nn.Module, device: torch.device) -> Precision:
        """The precision."""
        chosen = choose_precision(self.precision, model, device)
        self.notes["precision"] = f"{chosen.name}: {chosen.reason}"
        self.undos.append(chosen.undo)
        return chosen

    def fuse(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's kernel."""
        if self.unfused is not None:
            self.notes["optimizer"] = f"as written: {self.unfused}"
            return
        reason, undo = optimizing.fuse(optimizer)
        self.notes["optimizer"] = reason
        self._unfuse = undo
        self.undos += [undo, let_round(optimizer)]

    def unfuse(self, reason: str) -> None:
        """Give the optimizer its own kernel back, before its first step."""
        if self._unfuse is not None:
            self._unfuse()
            self._unfuse, self.notes["optimizer"] = None, f"as written: {reason}"

    def compiled(
        self, model: nn.Module, call: Callable[[Any], Tensor], device: torch.device
    ) -> compiling.Compiled:
        """The call, compiled, its logits in chunks where that was asked for."""
        chunked_head.check(self.logits)
        chosen = compiling.choose(self.compile, model, call, device, self.accumulate)
        self.undos.append(chosen.undo)
        logits = chunked_head.Logits(self.logits, model, chosen.call, chosen.how)
        self.undos.append(logits.undo)
        self.logits_note = logits.note
        return replace(chosen, call=logits.call)

    def undo(self) -> None:
        """Give back what was set, the last first."""
        while self.undos:
            self.undos.pop()()
