"""The end of a step: from gradients to new weights, with clipping, and without NaN and Inf.

On the CPU the host reads loss and gradient at no cost and skips a nonfinite step before the
optimizer sees it. On an accelerator nothing is read: torch's fused optimizers take a tensor that
makes them skip the step on the device (`found_inf`, introduced for `torch.amp.GradScaler`), and the
host learns of it some steps later.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from flatout_train.errors import NonfiniteError
from flatout_train.step.buffers import Buffers
from flatout_train.step.gradients import Gradients
from flatout_train.step.histories import Bad, Histories
from flatout_train.step.problems import parameter_names

HOPELESS = 20
"""This many skipped steps in a row are no longer fp16's search for its loss scale."""


class Update:
    """Takes optimizer steps, counts them, and records their losses and gradient norms."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        gradients: Gradients,
        buffers: Buffers,
        histories: Histories,
        clip_norm: float | None,
        policy: str,
        ranks: bool,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.gradients, self.buffers, self.histories = gradients, buffers, histories
        self.clip_norm, self.policy = clip_norm, policy
        self.ranks = ranks
        """Whether there are other ranks: all must decide alike, on the shared gradient alone."""
        self.steps = 0
        self.skipped = 0
        self._streak = (0, 0)
        """The last skipped step, and the number of consecutive skips that end with it."""
        self._stopping: NonfiniteError | None = None
        self.know_optimizer()
        self._with_momentum = isinstance(optimizer, torch.optim.SGD) and any(
            group["momentum"] for group in optimizer.param_groups
        )

    def know_optimizer(self) -> None:
        """Check whether the optimizer can skip a step on the device."""
        self.skips_on_device = bool(getattr(self.optimizer, "_step_supports_amp_scaling", False))

    def note(self) -> str:
        """What happens to steps that are not finite, and when they are detected."""
        return f"{self.policy}: {self._how()}"

    def _how(self) -> str:
        return "detected before the optimizer's step"

    def take(self, loss: Tensor, correction: float | Tensor | None) -> bool:
        """One optimizer step with the gradients times `correction`; `loss` (0-d) is only recorded.

        Returns False if the step is known to have been skipped. Raises NonfiniteError under the
        policy "stop", on an accelerator for an earlier step.
        """
        raise NotImplementedError

    def look(self, wait: bool = False) -> None:
        """Process the values that have arrived."""

    def collect(self, wait: bool = False) -> None:
        """`look`; raises NonfiniteError under the policy "stop" if a value is not finite."""
        self.look(wait)
        if self._stopping is not None:
            error, self._stopping = self._stopping, None
            raise error

    def _clip(self, grads: list[Tensor], norm: Tensor, correction: float | Tensor | None) -> None:
        if self.clip_norm is None or self.clip_norm == math.inf:
            if correction is not None:
                self.gradients.scale(grads, correction)
        elif correction is None and self.gradients.plain:
            torch.nn.utils.clip_grads_with_norm_(self.gradients.parameters, self.clip_norm, norm)
        else:
            factor = torch.clamp(self.clip_norm / (norm + 1e-6), max=1.0)
            self.gradients.scale(grads, factor if correction is None else factor * correction)

    def _needs_first_look(self) -> bool:
        """Whether this step must not be skipped on the device.

        torch's fused SGD creates its momentum buffers in the first step, and leaves them
        uninitialised if that step is skipped on the device.
        """
        return self._with_momentum and not self.optimizer.state

    def _left_out(self, step: int) -> None:
        self.skipped += 1
        last, length = self._streak
        self._streak = (step, length + 1 if last == step - 1 else 1)

    def _hopeless(self) -> bool:
        return self._streak[1] >= HOPELESS

    def _stop(self, step: int, loss: float, where: str, after: str) -> NonfiniteError:
        gradient = f"; the gradient is not finite in {where}" if where else ""
        return NonfiniteError(
            f"step {step}: the loss is {loss}{gradient}. {after} Check this step's batch and "
            'the learning rate, or pass nonfinite="skip" to skip such steps'
        )


class HostUpdate(Update):
    """Updates on the CPU, where the host reads loss and norm at no cost."""

    def take(self, loss: Tensor, correction: float | Tensor | None) -> bool:
        self.steps += 1
        gradients = self.gradients
        value = loss.item()
        norm = total = None
        if self.clip_norm is None and (gradients.plain or not self.ranks):
            finite = gradients.finite_when_scaled(correction)
        else:
            grads = gradients.present()
            total, _ = gradients.norm(grads)
            if correction is not None:
                total = total * correction
            norm = total.item()
            finite = math.isfinite(norm)
        loss_is_bad = not math.isfinite(value)
        if not finite or (loss_is_bad and (not self.ranks or self.policy == "stop")):
            self._bad(value, norm)
            return False
        if total is not None:
            self._clip(grads, total, correction)
        self.optimizer.step()
        self.histories.note(self.steps, value, norm, None)
        return True

    def _bad(self, loss: float, norm: float | None) -> None:
        self.buffers.restore()
        self.histories.note(self.steps, loss, norm, None)
        self._left_out(self.steps)
        if self.policy == "stop":
            where = parameter_names(self.model, self.gradients.nonfinite())
            raise self._stop(self.steps, loss, where, "Model and optimizer are as before the step.")


class DeviceUpdate(Update):
    """Updates on an accelerator, where reading a value would make the host wait."""

    def _how(self) -> str:
        if self.skips_on_device:
            return "skipped on the device, reported some steps later"
        name = type(self.optimizer).__name__
        if self.policy == "stop":
            return f"reported some steps later, when {name} has applied them"
        return f"each step waits for the device, as {name} cannot skip steps on it"

    def take(self, loss: Tensor, correction: float | Tensor | None) -> bool:
        self.steps += 1
        norm, parts, stepped = self.apply(loss, correction)
        self.record([loss, norm], parts)
        return stepped

    def apply(
        self, loss: Tensor, correction: float | Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool]:
        """The step without its records: (norm, norms of the parameters or None, step taken).

        Can be captured in a graph after the first step.
        """
        grads = self.gradients.present()
        norm, parts = self.gradients.norm(grads)
        if correction is not None:
            norm = norm * correction
        found_inf = _flag(norm if self.ranks else norm + loss)
        # Wait for the device in each step under "skip" if the optimizer cannot skip.
        looks = self._needs_first_look() or (self.policy != "stop" and not self.skips_on_device)
        self._clip(grads, norm, correction)
        if self.policy != "stop":
            self.buffers.restore_where(found_inf)
        if looks and found_inf.item():
            return norm, parts, False
        if self.skips_on_device and not looks:
            self._step_where_not(found_inf)
        else:
            self.optimizer.step()
        return norm, parts, True

    def _step_where_not(self, found_inf: Tensor) -> None:
        optimizer: Any = self.optimizer
        optimizer.grad_scale, optimizer.found_inf = None, found_inf
        try:
            optimizer.step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    def record(self, values: list[Tensor], parts: Tensor | None) -> None:
        """Record this step's values, and process those of earlier steps that have arrived."""
        self.histories.add(self.steps, values, parts)
        self.collect()

    def look(self, wait: bool = False) -> None:
        for bad in self.histories.take(wait):
            if self._was_left_out(bad):
                self._left_out(bad.step)
            self._stopping = self._stopping or self._judged(bad)

    def _was_left_out(self, bad: Bad) -> bool:
        return not self.ranks or not math.isfinite(bad.norm or 0.0)

    def _judged(self, bad: Bad) -> NonfiniteError | None:
        if self.policy != "stop":
            return None
        late = self.steps - bad.step
        if self.skips_on_device:
            after = f"Detected {late} steps later; the optimizer skipped that step."
        else:
            name = type(self.optimizer).__name__
            after = f"Detected {late} steps later; {name} cannot skip steps and has applied it."
        where = parameter_names(self.model, self.gradients.named_by(bad.parts))
        return self._stop(bad.step, bad.loss, where, after)


class ScaledUpdate(DeviceUpdate):
    """fp16: `torch.amp.GradScaler` finds the loss scale by skipping steps whose gradients overflow.

    So under "stop" a gradient that overflows does not stop the run, but a loss that is not finite
    does, and so do 20 skipped steps in a row.
    """

    def __init__(self, *args: Any, scaler: torch.amp.GradScaler, on_host: bool) -> None:
        super().__init__(*args)
        self.scaler, self.on_host = scaler, on_host

    def note(self) -> str:
        return f"{self.policy}: GradScaler skips steps that overflow and halves the loss scale"

    def take(self, loss: Tensor, correction: float | Tensor | None) -> bool:
        self.steps += 1
        scaler, optimizer = self.scaler, self.optimizer
        if not self.gradients.present():
            self.record([loss, torch.zeros_like(loss), self._scale()], None)
            return True  # all weights were 0; GradScaler requires gradients
        scaler.unscale_(optimizer)
        grads = self.gradients.present()
        norm, parts = self.gradients.norm(grads)
        if correction is not None:
            norm = norm * correction
        found_inf = _flag(norm)
        self._clip(grads, norm, correction)
        self.buffers.restore_where(found_inf)
        # Where the optimizer cannot skip on the device, GradScaler waits for the device as well.
        look = self.on_host or not self.skips_on_device or self._needs_first_look()
        skip = bool(look and found_inf.item())
        if not skip:
            scaler.step(optimizer)
        scale = self._scale()
        scaler.update()
        self.record([loss, norm, scale], parts)
        return not skip

    def _scale(self) -> Tensor:
        scale = self.scaler._get_scale_async()
        return torch.ones(()) if scale is None else scale.clone()

    def record(self, values: list[Tensor], parts: Tensor | None) -> None:
        self.histories.add(self.steps, values, parts)
        if self.on_host:
            self.histories.send()
        self.collect(wait=self.on_host)

    def _was_left_out(self, bad: Bad) -> bool:
        return not math.isfinite(bad.norm or 0.0)

    def _judged(self, bad: Bad) -> NonfiniteError | None:
        if self.policy != "stop" or (math.isfinite(bad.loss) and not self._hopeless()):
            return None
        after = f"Detected {self.steps - bad.step} steps later; the optimizer skipped that step."
        where = parameter_names(self.model, self.gradients.named_by(bad.parts))
        return self._stop(bad.step, bad.loss, where, after)


def _flag(value: Tensor) -> Tensor:
    """1.0 if `value` (0-d) is NaN or Inf, else 0.0: float32, on its device."""
    return (value - value).ne_(0).float()
