"""Calls of models without gradients: those that belong to each training step, and evaluations.

A policy that gathers experience, a generator whose images only the critic learns from, a model that
labels its own batch: such a call comes back in every step, in training mode, with different inputs
each time. An evaluation comes back after many steps, puts the model into evaluation mode, or gets
the same data each time, or those of a loader that starts over for it.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from flatout_agent.watch import places
from flatout_agent.watch.tensors import readable, tensors_in

STEPS = 3
"""After this many steps in a row with such a call, it belongs to them."""
EQUAL = 3
"""After this many times with the same or unreadable inputs, it counts as an evaluation for good."""
VALUES = 4096
"""About this many numbers of each input are compared, spread over it."""
INPUTS = 4
"""The most tensors of a call that are compared."""
DEEPEST = 64
"""Frames that distinguish calls, from the innermost outwards."""
SITES = 256
"""The most call sites remembered."""
TORCH = torch.__path__[0]

Site = tuple[tuple[int, int], ...]
"""The lines that lead to a call, each with its function's code; in a recursion each line once."""
Values = tuple[tuple[tuple[int, ...], list[Any]], ...]
"""The shape and the numbers of each input."""


@dataclass(slots=True)
class _Seen:
    """The calls from one site."""

    step: int = -1
    """The last step with one."""
    in_row: int = 0
    """Steps in a row until then."""
    values: Values | None = None
    """The values of the first call in the last step that was examined."""
    equal: int = 0
    """How often they were the same."""
    belongs: bool = False


class StepCalls:
    """Learns in the first steps which calls come back in each; until then they evaluate."""

    def __init__(self) -> None:
        self.known = 0
        """Sites whose calls belong to each step."""
        self._sites: dict[Site, _Seen] = {}

    def belong(self, model: torch.nn.Module, inputs: Any, step: int, own_loader: bool) -> bool:
        """Whether this call without gradients belongs to each step; otherwise it is an evaluation.

        step: the number of the current step. own_loader: the call gets the batches of a loader
        started since the step before.
        """
        if not model.training:
            return False
        site = _site(sys._getframe(1))
        seen = self._sites.get(site)
        if seen is None:
            if len(self._sites) >= SITES:
                return False
            seen = self._sites[site] = _Seen()
        if not seen.belongs and seen.step != step:
            seen.in_row = seen.in_row + 1 if seen.step == step - 1 and not own_loader else 1
            seen.step = step
            seen.belongs = seen.in_row > 1 and seen.equal < EQUAL and _differs(seen, inputs)
            self.known += seen.belongs
        return seen.belongs


def _differs(seen: _Seen, inputs: Any) -> bool:
    """Whether the call comes back with different inputs, after enough steps."""
    before, seen.values = seen.values, _values(inputs)
    if seen.values is None or seen.values == before:
        seen.equal += 1
        return False
    return before is not None and seen.in_row >= STEPS


def _site(frame: FrameType | None) -> Site:
    """The call site, without the frames of torch and of the agent that lead from the call
    to here.
    """
    while frame is not None and frame.f_code.co_filename.startswith((places.AGENT, TORCH)):
        frame = frame.f_back
    lines: dict[tuple[int, int], None] = {}
    for _ in range(DEEPEST):
        if frame is None:
            break
        lines[id(frame.f_code), frame.f_lineno] = None
        frame = frame.f_back
    return tuple(lines)


def _values(inputs: Any) -> Values | None:
    """The values of the inputs, or None if there are no tensors or they cannot be read now."""
    if _get_current_dispatch_mode_stack():
        return None  # the script's own mode would see these operators
    with contextlib.suppress(Exception):
        tensors = list(itertools.islice(tensors_in(inputs), INPUTS))
        if tensors and all(
            type(tensor) is torch.Tensor and tensor.layout is torch.strided and readable(tensor)
            for tensor in tensors
        ):
            return tuple((tuple(tensor.shape), _numbers(tensor)) for tensor in tensors)
    return None


def _numbers(tensor: torch.Tensor) -> list[Any]:
    flat = tensor.detach().flatten()
    numbers: list[Any] = flat[:: 1 + flat.numel() // VALUES].tolist()
    return numbers
