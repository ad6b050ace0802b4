"""Observers of the job; each gets the same few calls while the program trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from flatout_agent.watch.loop_record import LoopRecord


class Watcher:
    """The events that discovery reports. Every method is optional; none may raise into the program.

    A watcher that is `light` needs no calls for each batch, forward pass and loss once the job is
    known, so discovery removes those hooks.
    """

    light = True
    quiet = False
    """Asked at each step's end: until the next one, or until an epoch begins, it needs no calls for
    backward passes and optimizers. Their hooks stay, as compiled code of the program may depend on
    their number, but return at once."""
    reads_steps = True
    """`step` is called for each step, even if the watcher is quiet."""
    loss_seen: Callable[[torch.Tensor], None] | None = None
    """Called instead of `backward` while the watcher is quiet, even if it is light; it raises
    nothing. None if nobody reads the losses."""
    ended = 0.0
    """When the last step ended, by `time.perf_counter`, if the watcher notes that."""
    counter: LoopRecord | None = None
    """Counts the batches of its training loader, instead of `batch`, while the watcher is quiet and
    reads no steps; an epoch of that loader ends no quiet.
    """
    leave: Callable[[], None]
    """Removes discovery's hooks for good: nothing more is reported."""

    def loader_found(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        """A DataLoader is iterated for the first time, before any boost touched it."""

    def batch(self, loader: torch.utils.data.DataLoader[Any], batch: Any, wait_s: float) -> Any:
        """`loader` gave a batch after `wait_s` seconds; returns the batch that the program gets."""
        return batch

    def model_found(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A root model is about to be called in training for the first time."""

    def frozen_found(self, model: torch.nn.Module) -> None:
        """A model that is not trained is about to be called in a second step."""

    def training_call(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A root model is about to be called in training (seen until the job is known)."""

    def backward(self, loss: torch.Tensor) -> None:
        """`backward` is about to run on this tensor."""

    def backward_ended(self) -> None:
        """That `backward` has ended: gradients exist, and the weights are unchanged."""

    def epoch_begins(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        """An epoch of `loader` is about to begin."""

    def optimizer_starts(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer.step` begins."""

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer.step` has ended."""

    def step(self) -> None:
        """One step of the job has ended; `job.steps` counts it already."""

    def start_over(self) -> None:
        """What was seen of the current step belongs to no step that counts."""

    def program_ends(self) -> None:
        """The interpreter is about to exit."""

    def put_back(self) -> None:
        """Undo everything that this watcher has switched on or put into torch, after
        `program_ends`.
        """
