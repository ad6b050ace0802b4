"""A training step's state: everything its next call depends on, and resuming from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_train.errors import UsageError

if TYPE_CHECKING:
    from flatout_train.step.train_step import TrainStep

VERSION = 1


def of(step: TrainStep) -> dict[str, Any]:
    """The state, by references to the live tensors, as `state_dict` of a module is."""
    group, update = step._group, step._update
    step._histories.send()
    update.look(wait=True)
    state: dict[str, Any] = {
        "version": VERSION,
        "model": step._bare.state_dict(),
        "optimizer": step.optimizer.state_dict(),
        "scheduler": None if step.scheduler is None else step.scheduler.state_dict(),
        "scaler": None if step._scaler is None else step._scaler.state_dict(),
        "ema": None if step.ema is None else step.ema.state_dict(),
        "counts": {
            "steps": update.steps,
            "calls": step._calls,
            "skipped": update.skipped,
            "splits": step._passes.splits,
        },
        "nominal": group.nominal,
        "group": None,
    }
    if group.count:
        state["group"] = {"count": group.count, **_gradient(step)}
    return state


def _gradient(step: TrainStep) -> dict[str, Any]:
    """The sums of the unfinished group; empty with several ranks, which each have their own."""
    group = step._group
    if group.ranks is not None:
        return {}
    return {
        "weight": float(group.weight),
        "loss": float(group.loss),
        "gradients": [parameter.grad for parameter in step._gradients.parameters],
    }


def into(step: TrainStep, state: dict[str, Any]) -> None:
    """Load `state` into the step's model, optimizer and the rest."""
    if not isinstance(state, dict) or state.get("version") != VERSION:
        version = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise UsageError(
            f"this is not a training step's state that this flatout can read (version {version!r}, "
            f"not {VERSION}): pass load_state_dict what state_dict() of a train_step returned"
        )
    for name, own in (("scheduler", step.scheduler), ("scaler", step._scaler), ("ema", step.ema)):
        if (state[name] is None) != (own is None):
            own_part, saved_part = ("a", "none") if own is not None else ("no", "one")
            raise UsageError(
                f"this step has {own_part} {name}, the saved one has {saved_part}: build the step "
                "with the same arguments as the saved one"
            )
    step._bare.load_state_dict(state["model"])
    step.optimizer.load_state_dict(state["optimizer"])
    for name, own in (("scheduler", step.scheduler), ("scaler", step._scaler), ("ema", step.ema)):
        if own is not None:
            own.load_state_dict(state[name])
    if step._scaler is not None:
        step._histories.scale = step._scaler.get_scale()
    counts = state["counts"]
    step._update.steps, step._update.skipped = counts["steps"], counts["skipped"]
    step._calls, step._passes.splits = counts["calls"], counts["splits"]
    step._group.nominal = state["nominal"]
    _load_group(step, state["group"])


def _load_group(step: TrainStep, saved: dict[str, Any] | None) -> None:
    group = step._group
    group.clear()
    step._gradients.clear()
    if saved is None:
        return
    if "gradients" not in saved:
        step._choices.notes["resumed"] = (
            f"the last {saved['count']} calls before the state was saved belong to an unfinished "
            "accumulation group: with several ranks their gradients are not saved"
        )
        return
    parameters = step._gradients.parameters
    gradients = saved["gradients"]
    if len(gradients) != len(parameters):
        raise UsageError(
            f"the saved step had {len(gradients)} parameters in its optimizer, this one has "
            f"{len(parameters)}: build the same model and optimizer as for the saved step"
        )
    group.base = [
        None if grad is None else grad.to(parameter.device, copy=True)
        for grad, parameter in zip(gradients, parameters, strict=True)
    ]
    for parameter, grad in zip(parameters, group.base, strict=True):
        parameter.grad = None if grad is None else grad.clone()
    group.count, group.weight, group.loss = saved["count"], saved["weight"], saved["loss"]
    step._buffers.keep()
