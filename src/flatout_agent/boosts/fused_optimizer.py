"""Update all parameters in one kernel instead of one by one.

## What it does

Switches the script's own optimizer to its fused implementation (`fused=True`) before its first
step. If the optimizer has none and the plain loop runs (CPU), it switches to the `foreach`
implementation. Checkpoints look the same as without flatout: `state_dict()` shows the script's own
flags, and `load_state_dict()` in the middle works.

## Why it is faster

The plain loop launches ten or so small operations for each parameter tensor, and each reads and
writes the whole tensor. The fused kernel reads gradient, weight and state once and does everything.

## When it does nothing

- The optimizer is not one of `torch.optim`, has neither implementation, or none for this device.
- The script chose `fused` or `foreach` itself, or asks for `differentiable`.
- Gradients are sparse or complex, hyper-parameters are tensors, or parameters are not plain dense
  tensors.

## What it may change

The formula is the same, in fused operations: results differ in the last bit.

## How it is undone

The flags and the optimizer's state are put back as the script had them; the hooks are removed.

## References

- https://docs.pytorch.org/docs/stable/optim.html#algorithms
- https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup
from flatout_agent.speedups.fused_updates import FOREACH, FUSED, FusedUpdate, cannot, faster

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, OptimizerFacts, Params

BOOST = Boost(since="0.1.0", risk=Risk.EXACT, moment=Moment.OPTIMIZER)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.by_hand:
        return "no optimizer steps: the program changes its weights itself"
    reasons = [_why_not(optimizer, facts.device) for optimizer in facts.optimizers]
    return reasons[0] if reasons and all(reasons) else None


def _why_not(optimizer: OptimizerFacts, device: str) -> str | None:
    if not optimizer.from_torch:
        return f"{optimizer.kind} is not one of torch.optim's own classes"
    if optimizer.fused is not None or optimizer.foreach is not None:
        return f"the script chose the implementation of {optimizer.kind} itself"
    if optimizer.kind in FUSED:
        return None
    if optimizer.kind not in FOREACH:
        return f"{optimizer.kind} has neither a fused nor a foreach implementation"
    if device != "cpu":
        return f"{optimizer.kind} has no fused implementation, and foreach is the default there"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, for the order of trials."""
    if facts.device == "cpu" and facts.shares:
        return max(1.005, speedup(facts, optimizer=1.8) or 1.0)
    if facts.device == "cpu":
        # The update reads and writes each weight some ten times; a small batch hides it least.
        return 1.04 if any(optimizer.kind in FUSED for optimizer in facts.optimizers) else 1.01
    return 1.03


def apply(job: Job, target: torch.optim.Optimizer, params: Params) -> Applied:
    """Switch the optimizer to its fused (or foreach) implementation."""
    reason = cannot(target) or _sparse(job, target)
    if reason is not None:
        raise Declined(reason)
    switch = FusedUpdate(target, *faster(target))
    try:
        switch.on()
    except Exception:
        switch.off()
        raise
    return Applied(switch.off, switch.engaged)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    lines = []
    for kind in dict.fromkeys(optimizer.kind for optimizer in facts.optimizers) or ("AdamW",):
        lines += [
            f"optimizer = torch.optim.{kind}(",
            "    model.parameters(),",
            "    # what it is given now, and:",
            f"    {'fused' if kind in FUSED else 'foreach'}=True,",
            ")",
        ]
    return "\n".join([*lines, ""])


def _sparse(job: Job, optimizer: torch.optim.Optimizer) -> str | None:
    import torch

    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    reason = "some gradients are sparse"
    if any(grad is not None and grad.layout != torch.strided for grad in grads):
        return reason
    if any(grad is not None for grad in grads):
        return None
    # With a closure the gradients come inside the step. A sparse one can only come from these
    # modules.
    modules = (module for model in job.models for module in model.modules())
    return reason if any(getattr(module, "sparse", False) is True for module in modules) else None
