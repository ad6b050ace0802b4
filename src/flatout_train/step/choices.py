"""The choices for a step on this machine, each made once, with its reason and its undo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatout_agent.speedups.channels_last import convolutions
from flatout_train import plans
from flatout_train.step import compiling, optimizing
from flatout_train.step import layout as layouts
from flatout_train.step.layout import ModelLayout
from flatout_train.step.precision import Precision
from flatout_train.step.precision import choose as choose_precision


@dataclass
class Choices:
    """The requested options, and the choice for each."""

    precision: str
    compile: str | bool
    layout: str
    graph: str | bool
    unfused: str | None = None
    """Why the optimizer keeps its own kernel, or None if it gets the fused one."""
    notes: dict[str, str] = field(default_factory=dict)
    undos: list[Callable[[], None]] = field(default_factory=list)
    _unfuse: Callable[[], None] | None = None

    def follow(self, path: str | Path | None) -> None:
        """Let a plan decide what was left at "auto", and apply its process-wide settings.

        Raises UsageError for a plan that cannot be read.
        """
        if path is None:
            if self.precision == "fp32" and self.compile is False:
                self.unfused = 'precision="fp32" with compile=False keeps each bit'
                self.layout = "contiguous" if self.layout == "auto" else self.layout
            return
        plan = plans.read(path)
        for name in ("precision", "compile", "layout", "graph"):
            value = getattr(plan, name)
            if value is not None and getattr(self, name) == "auto":
                setattr(self, name, value)
        self.unfused = None if plan.fused else "the plan says so"
        started = plans.begin(plan)
        self.undos.append(started)
        unused = dict(plan.ignored) | started.declined
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unused.items())
        self.notes["plan"] = f"{path} (not used: {reasons})" if reasons else str(path)

    def begin_settings(self, model: nn.Module, device: torch.device) -> None:
        """Process-wide settings, if no plan decides them.

        On the CPU, freed memory is kept for the next step. On CUDA, cuDNN times which kernel is
        fastest for each convolution shape, unless results must stay bit-identical.
        """
        if "plan" in self.notes:
            return
        if device.type == "cpu":
            self._begin("allocator", "glibc keeps freed memory")
        elif device.type == "cuda" and self.unfused is None and convolutions(model):
            self._begin("cudnn-benchmark", "cuDNN times the kernels for each shape")

    def _begin(self, boost: str, effect: str) -> None:
        started = plans.begin(plans.StepPlan(starts=((boost, {}),)))
        self.undos.append(started)
        reason = started.declined.get(boost)
        self.notes[boost] = f"unchanged: {reason}" if reason else effect

    def place(self, model: nn.Module) -> ModelLayout:
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
        """Switch the optimizer to its fastest kernel, unless results must stay bit-identical."""
        if self.unfused is not None:
            self.notes["optimizer"] = f"as written: {self.unfused}"
            return
        reason, undo = optimizing.fuse(optimizer)
        self.notes["optimizer"] = reason
        self._unfuse = undo
        self.undos.append(undo)

    def unfuse(self, reason: str) -> None:
        """Restore the optimizer's own kernel, before its first step."""
        if self._unfuse is not None:
            self._unfuse()
            self._unfuse, self.notes["optimizer"] = None, f"as written: {reason}"

    def compiled(
        self, model: nn.Module, call: Callable[[Any], Tensor], device: torch.device
    ) -> compiling.Compiled:
        """The call, compiled where that pays."""
        chosen = compiling.choose(self.compile, model, call, device)
        self.undos.append(chosen.undo)
        return chosen

    def undo(self) -> None:
        """Undo everything, the last change first."""
        while self.undos:
            self.undos.pop()()
