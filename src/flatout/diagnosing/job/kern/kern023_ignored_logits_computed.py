"""Logits are computed for rows that the loss leaves out.

## What it sees

A linear layer whose output only goes into `cross_entropy` or `nll_loss`, with at least 60% of its
rows not in the loss: their target is `ignore_index`, or an index after the layer leaves them out
(`logits[mask]`, `logits[:, -1]`). Reported from 1,000 classes, or if layer and loss take a tenth of
the step.

## Why it matters

In masked language modelling 15% of the positions count, but the head with its tens of thousands of
classes, the softmax and both their backward passes run over all of them, and the logits are often
the largest tensor of the whole step.

## Cure

Select the positions first: `self.head(hidden[mask])`, and `target[mask]` for the loss. The loss and
its gradients are the same. The gain: the time of layer and loss with their backward pass, times the
share of rows that are left out. It saves the memory of their logits, too.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import FlowSeen, IgnoredSeen

CHECK = Check(code="KERN023", severity=Severity.WARNING, since="0.2.0")
MANY = 1000
"""Classes from which it is reported whatever its time."""
LEAST = 0.1
"""Share of the step from which it is reported for fewer classes."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each layer and its loss."""
    seen = flow.of(profile)
    for row in seen.ignored if seen is not None else ():
        assert seen is not None
        took = _ms(profile, seen, row)
        if row.rows <= 0 or (row.classes < MANY and took < LEAST * profile.anatomy.step_ms):
            continue
        out = 1 - row.used / row.rows
        saving = device_time.of_device(
            profile,
            took * out,
            f"layer and loss take {units.milliseconds(took)} on all rows with their backward "
            f"pass; {units.share(out)} of the rows are not in the loss",
        )
        if not saving.worth:
            continue
        yield Diagnosis(
            title=f"logits of {row.classes:,} classes are computed for all positions, and "
            f"{units.share(out)} of them are not in the loss",
            evidence=f"{row.rows:,} rows of logits a step, {row.used:,} in the loss"
            f"{_loss(row)}; {units.milliseconds(took)} in the layer and the loss",
            cure=_cure(profile, row),
            severity=saving.severity,
            where=row.head_where or row.loss_where,
            saves_ms=saving.ms,
            reason=saving.reason,
            most_ms=took,
        )


def _ms(profile: Profile, flow: FlowSeen, row: IgnoredSeen) -> float:
    """Milliseconds of a step in layer and loss.

    On an accelerator by the share of operations in the time of its products, else by the share of
    the time in operators.
    """
    if savings.accelerated(profile):
        return min(max(row.flops, 0.0), 1.0) * operators.total(profile, operators.products(profile))
    if flow.operators_s <= 0:
        return 0.0
    took = operators.total(profile, profile.operators)
    return min(max(row.s / flow.operators_s, 0.0), 1.0) * took


def _loss(row: IgnoredSeen) -> str:
    where = f" on {row.loss_where}" if row.loss_where is not None else ""
    return f"{where} ({row.ignored:,} targets are ignore_index)" if row.ignored else where


def _cure(profile: Profile, row: IgnoredSeen) -> Cure:
    mask = "mask = target != -100" if row.ignored else "mask = ...  # the positions in the loss"
    return Cure(
        "Select the positions that the loss needs before the layer: the loss stays the same.",
        savings.lines(
            row.head_where or row.loss_where,
            flow.line_source(profile, row.head_where or row.loss_where),
            mask,
            "logits = head(hidden[mask])",
            "loss = F.cross_entropy(logits, target[mask])",
        ),
    )
