"""Observers of the job: each gets the same few calls while the program trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Watcher:
    """What discovery reports. Every method may be left out; none may raise into the program.

    A watcher that is `light` needs no calls for each batch, forward pass and loss once the job is
    known, so that discovery takes those hooks out.
    """

    light = True
    reads_losses = False
    """`backward` is called for each backward pass of the whole run, also where it is light."""
    ended = 0.0
    """When the last step ended, by `time.perf_counter`, where the watcher notes that."""
    leave_loop: Callable[[], None] | None = None
    """Raises out of the program's loop, where the process must not end with it; None: it may."""
    leave: Callable[[], None]
    """Takes discovery's hooks out for good: nothing more is reported."""

    def loader_found(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        """A DataLoader is iterated for the first time, before any boost touched it."""

    def batch(self, loader: torch.utils.data.DataLoader[Any], batch: Any, wait_s: float) -> Any:
        """`loader` gave a batch after `wait_s`; returns the batch that the program gets."""
        return batch

    def model_found(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A root model is about to be called in training for the first time."""

    def training_call(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A root model is about to be called in training (seen until the job is known)."""

    def backward(self, loss: torch.Tensor) -> None:
        """`backward` is about to run on this tensor."""

    def backward_ended(self) -> None:
        """That `backward` has ended: gradients are there, the weights are still the same."""

    def epoch_begins(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        """An epoch of `loader` is about to begin."""

    def optimizer_starts(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer.step` begins."""

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer.step` has ended."""

    def step(self) -> None:
        """One step of the job has ended; `job.steps` counts it already."""

    def start_over(self) -> None:
        """What was seen of the step under way belongs to none that counts."""

    def program_ends(self) -> None:
        """The interpreter is about to exit."""

    def put_back(self) -> None:
        """Undo what this watcher has switched on or put into torch, after `program_ends`."""
