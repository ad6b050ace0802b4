"""The optimizer updates all rows of a large embedding of which a step uses few.

## What it sees

An embedding with dense gradients, at least five times as many rows as a step looks up, that nothing
else in the forward pass reads (no tied output layer), and an optimizer that has a version for
sparse gradients: Adam, AdamW, Adagrad, SGD without momentum. Reported if the update of these rows,
with filling and adding their gradients, takes at least a tenth of the step.

## Why it matters

The gradient of a dense embedding is a matrix of the whole table, zeros but for a few rows. It is
filled, added and read again in each step, and the update goes through the table and each of the
optimizer's states: time that grows with the vocabulary, not with the batch.

## Cure

`nn.Embedding(..., sparse=True)`, with a separate optimizer for these weights:
`torch.optim.SparseAdam` in place of Adam and AdamW; `SGD` and `Adagrad` take sparse gradients
themselves, without weight decay. The rows that a step does not use then keep their values and their
momentum, which decay otherwise: training differs slightly, as it does for any lazy optimizer. The
gain: the share of the update that these weights are, and their gradients' time, less four times the
share of rows that are used.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
- https://docs.pytorch.org/docs/stable/generated/torch.optim.SparseAdam.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, operators, savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile
from flatout_agent.wire import EmbeddingSeen

CHECK = Check(code="KERN022", severity=Severity.WARNING, since="0.2.0")
SPARSE = {"Adam": "SparseAdam", "AdamW": "SparseAdam", "SGD": "SGD", "Adagrad": "Adagrad"}
"""The torch optimizer for sparse gradients that replaces each."""
LEAST = 0.1
"""Share of the step in these rows below which nothing is reported."""
MOMENTUM = 0.1
"""The most that an optimizer without momentum holds, as a share of the parameters' bytes."""
DEAR = 4.0
"""How many times as long a used row takes in the sparse as in the dense update."""
FILLING = r"aten::(fill_|zero_|add_?|embedding_dense_backward|_embedding_bag_dense_backward)"
"""Operators that make and add up dense gradients."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all embeddings."""
    seen, job = flow.of(profile), profile.job
    rows = [row for row in seen.embeddings if row.rows * row.width > 0] if seen is not None else []
    optimizers = job.optimizers if job is not None else ()
    if not rows or job is None or job.world_size > 1 or not optimizers:
        return
    kinds = list(dict.fromkeys(optimizer.kind for optimizer in optimizers))
    known = all(one.from_torch and one.kind in SPARSE for one in optimizers)
    if not known or (kinds == ["SGD"] and _has_momentum(profile)):
        return
    numbers = sum(row.rows * row.width for row in rows)
    trained = max(sum(optimizer.parameters for optimizer in optimizers), numbers)
    update = profile.anatomy.part(Kind.OPTIMIZER) * numbers / trained
    gradients = operators.total(profile, _gradients(profile, rows))
    took = update + gradients
    used = sum(row.touched * row.width for row in rows) / numbers
    left = min(DEAR * used, 1.0)
    saving = device_time.of_device(profile, took * (1 - left), _reason(update, gradients, left))
    if took < LEAST * profile.anatomy.step_ms or not saving.worth:
        return
    many = f"{len(rows)} embeddings" if len(rows) > 1 else "an embedding"
    yield Diagnosis(
        title=f"the update goes through all rows of {many}, of which a step uses "
        f"{units.share(used)}",
        evidence=f"{_tables(rows)}; update {units.milliseconds(update)}, dense gradients "
        f"{units.milliseconds(gradients)}",
        cure=Cure(
            "Give these embeddings sparse gradients, and an optimizer that takes them: only the "
            "rows that are used are updated then (the others' momentum waits).",
            _lines(rows, kinds),
        ),
        severity=saving.severity,
        where=(profile.seen.optimizer_where if profile.seen is not None else None)
        or next((line for row in rows for line in row.lines), None),
        saves_ms=saving.ms,
        reason=saving.reason,
        most_ms=took,
    )


def _has_momentum(profile: Profile) -> bool:
    """Whether SGD has momentum or that is unknown: with it, sparse gradients grow without end."""
    seen = profile.seen
    if seen is None or seen.optimizer_bytes is None:
        return True
    return seen.optimizer_bytes > MOMENTUM * (seen.parameter_bytes or 0)


def _gradients(profile: Profile, rows: Sequence[EmbeddingSeen]) -> list[Operator]:
    """Operators that fill and add up only gradients of these tables."""
    tables = {f"{row.rows}x{row.width}" for row in rows}
    return [
        operator
        for operator in operators.called(profile, FILLING)
        if operator.backward
        and operator.shapes
        and (
            "embedding" in operator.name
            or all(shape.partition(",")[0] in tables for shape in operator.shapes)
        )
    ]


def _reason(update: float, gradients: float, left: float) -> str:
    return (
        f"the update of these weights takes {units.milliseconds(update)}, their gradients "
        f"{units.milliseconds(gradients)}; {units.share(left)} is taken to be left"
    )


def _tables(rows: Sequence[EmbeddingSeen]) -> str:
    return "; ".join(
        f"{row.name or 'an embedding'}: {row.rows:,} x {row.width:,}, of which a step looks up "
        f"{row.indices:,} ({row.touched:,} distinct){' on ' if row.lines else ''}"
        f"{' and '.join(row.lines[:3])}"
        for row in rows
    )


def _lines(rows: Sequence[EmbeddingSeen], kinds: Sequence[str]) -> tuple[str, ...]:
    first = rows[0]
    name = first.name or "embedding.weight"
    optimizer = SPARSE[kinds[0]]
    return savings.lines(
        None,
        f"nn.Embedding({first.rows}, {first.width})",
        f"nn.Embedding({first.rows}, {first.width}, sparse=True)",
        f"torch.optim.{optimizer}([model.{name}, ...], lr=...)  # the others stay as they are",
    )
