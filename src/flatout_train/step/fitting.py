"""Out of memory is not the end: the step is made to fit and repeated.

A call that runs out of memory is undone, what it left behind is freed, and it is repeated in two
parts, in four and so on: the same gradient within rounding, since each part's loss is weighted.
Where one sample does not fit, `recompute` is "auto" and the model has repeated blocks, they are
recomputed from then on (see `recomputation`), in as few parts as fit then.

The load of one part (elements of the batch's tensors) is remembered: the largest that fitted and
the smallest that did not. So a larger batch is split at once, a smaller one less or not at all, and
a load that did not fit is not tried again in this process, unless it had fitted before: then
something else took the memory, and the call is repeated once unchanged.

A repeated call starts from the same torch random states; Python's and NumPy's are not restored.

Splitting changes what depends on the batch as a whole: batch normalisation sees the parts, and
random numbers (dropout) are drawn differently. Recomputation changes neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flatout_agent.speedups import nests
from flatout_train.errors import UsageError
from flatout_train.out_of_memory import is_out_of_memory, let_go
from flatout_train.step.recomputation import recompute as recompute_blocks
from flatout_train.step.splitting import batch_size, split

Attempt = Callable[[list[Any]], Tensor]


class Fit:
    """Makes the steps of one model fit into memory, and remembers how.

    Raises UsageError if `recompute` is True and the model has no repeated blocks.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        recompute: Literal["auto"] | bool | str = "auto",
    ) -> None:
        self._model, self._device, self._recompute = model, device, recompute
        self._largest_fitting = 0.0
        """The largest load of one part that fitted, in elements of the batch's tensors."""
        self._smallest_failing = math.inf
        """The smallest load of one part that did not fit, in elements."""
        self._last_parts = 1
        self._stop: Callable[[], None] | None = None
        """Ends the recomputation; None while nothing is recomputed."""
        self.free: Callable[[], bool] = lambda: False
        """Frees memory that steps do not need; called before anything is split. Returns False if
        there was none."""
        if recompute is True:
            self._stop = recompute_blocks(model)

    def run(self, batch: Any, attempt: Attempt, undo: Callable[[], None]) -> Tensor:
        """The result of `attempt([batch])`, or of `attempt(parts)` if the whole batch does not fit.

        `attempt` runs forward and backward passes of the parts and adds up their weighted
        gradients; `undo` reverts what a failed attempt did to gradients and buffers. Other errors
        of `attempt` pass through. Raises torch.OutOfMemoryError, chained to the device's error,
        if one sample does not fit or the batch cannot be split. A step that several ranks share
        cannot be repeated by one of them: do not run it here.
        """
        load = float(sum(tensor.numel() for tensor in nests.tensors(batch)))
        random = random_states(self._device)
        repeated = False
        while True:
            parts, share = self._choose(batch, load)
            try:
                loss = attempt([batch] if parts == 1 else split(batch, parts))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failure = error
            else:
                self._largest_fitting = max(self._largest_fitting, share)
                if load >= self._smallest_failing:
                    self._last_parts = parts
                return loss
            undo()
            _set_random_states(self._device, random)
            if self.free():
                pass  # repeat unchanged: what fits without the freed memory is still unknown
            elif repeated or share > self._largest_fitting:
                self._too_large(failure, batch, parts, share)
            else:
                repeated = True
            let_go(failure, self._device)

    def close(self) -> None:
        """Restore the model: nothing is recomputed any more."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    @property
    def note(self) -> str:
        """The measures that make the steps fit, and why, as text."""
        blocks = "" if self._stop is None else "recomputes every block"
        if self._smallest_failing == math.inf and (self._recompute is True or not blocks):
            return f"{blocks}: requested" if blocks else "everything fitted"
        parts = f"split in {self._last_parts}" if self._last_parts > 1 else "not split"
        return f"{blocks}{', ' if blocks else ''}{parts}: it did not fit at once"

    def _choose(self, batch: Any, load: float) -> tuple[int, float]:
        """The fewest parts (1, 2, 4, ..., one per sample) that are not known to be too large, and
        the load of the largest.
        """
        if load < self._smallest_failing:
            return 1, load
        rows, parts = _rows(batch), 1
        while parts < rows and _share(load, rows, parts) >= self._smallest_failing:
            parts = min(2 * parts, rows)
        return parts, _share(load, rows, parts)

    def _too_large(self, error: Exception, batch: Any, parts: int, share: float) -> None:
        """Remember that a part was too large; raises if nothing is left to try."""
        self._smallest_failing = min(self._smallest_failing, share)
        rows = _rows(batch)
        if parts < rows or self._recomputes_now():
            return
        raise torch.OutOfMemoryError(_too_large(batch, rows, self._device)) from error

    def _recomputes_now(self) -> bool:
        """Start to recompute the blocks, where that is allowed and possible, and find what fits
        anew; whether it was started.
        """
        if self._recompute != "auto" or self._stop is not None:
            return False
        try:
            self._stop = recompute_blocks(self._model)
        except UsageError:
            return False
        self._largest_fitting, self._smallest_failing, self._last_parts = 0.0, math.inf, 1
        return True


def _share(load: float, rows: int, parts: int) -> float:
    """The load of the largest part."""
    return load * -(-rows // parts) / rows


def _rows(batch: Any) -> int:
    try:
        return batch_size(batch)
    except UsageError:  # nothing along which to split it
        return 1


def random_states(device: torch.device) -> list[Tensor]:
    """Random states of torch on the CPU and on the device, read without waiting."""
    states = [torch.get_rng_state()]
    if device.type == "mps":
        states.append(torch.mps.get_rng_state())
    elif device.type not in ("cpu", "meta"):
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def _set_random_states(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "mps":
        torch.mps.set_rng_state(states[1])
    elif len(states) > 1:
        torch.get_device_module(device).set_rng_state(states[1], device)


def _too_large(batch: Any, rows: int, device: torch.device) -> str:
    sample = split(batch, rows)[0] if rows > 1 else batch
    shapes = [f"{list(tensor.shape)} {tensor.dtype}" for tensor in nests.tensors(sample)]
    what = ", ".join(shapes[:4]) + (", ..." if len(shapes) > 4 else "")
    subject = f"one sample of the batch's {rows}" if rows > 1 else "a batch that cannot be split"
    return (
        f"{subject} ({what.replace('torch.', '')}) does not fit into the memory of {device} beside "
        'the model. Smaller samples, recompute=True, precision="bf16" or an optimizer with less '
        "state need less"
    )
