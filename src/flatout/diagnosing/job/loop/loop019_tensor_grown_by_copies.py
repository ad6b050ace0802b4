"""A tensor is grown by torch.cat in a loop: each call copies all that was there before.

## What it sees

`out = torch.cat([out, x])` (also `hstack`, `vstack`), called 8 times a step or more on one line,
where each call takes the whole result of the one before, and nothing else reads these results
until the last one is there. Or such a line whose tensor grows from step to step. The data flow of
two consecutive steps shows it. What a layer reads at each length, as in a DenseNet or in a cache of
keys and values, does not count.

## Why it matters

Of n parts the first is copied n times, the second n - 1 times: the copying grows with the square
of n. Two hundred time steps copy a hundred times the memory of the result. A tensor that grows from
step to step makes each step slower than the one before.

## Evidence

The line, its calls in a step, the size of the tensor, and the time of these copies.

## Cure

Append the parts to a list, and concatenate once after the loop: `torch.stack(parts, 1)` for parts
without the new dimension, else `torch.cat(parts, 1)`. What is read while it grows from step to
step: allocate it once, and write into it. The gain: the time of the copies, less that of one.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.stack.html
- https://docs.pytorch.org/docs/stable/generated/torch.cat.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import GrownSeen

CHECK = Check(code="LOOP019", severity=Severity.WARNING, since="0.3.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    seen = flow.of(profile)
    for row in seen.growing if seen is not None else ():
        took = _ms(profile, row)
        saving = device_time.of_device(
            profile,
            row.spared * took,
            f"of the {units.milliseconds(took)} of concatenating, {units.share(row.spared)} copies "
            "what was there before",
        )
        if saving.worth:
            yield Diagnosis(
                title=_title(row, took),
                evidence=_evidence(row, took),
                cure=_cure(profile, row),
                severity=saving.severity,
                where=row.where,
                saves_ms=saving.ms,
                reason=saving.reason,
            )


def _ms(profile: Profile, row: GrownSeen) -> float:
    """Of a step, in the concatenations of its line; by the counted step where none is recorded."""
    recorded = operators.total(
        profile,
        [
            operator
            for operator in operators.called(profile, "aten::cat")
            if str(operator.where) == row.where and not operator.backward
        ],
    )
    return recorded or (0.0 if savings.accelerated(profile) else row.s * 1000)


def _title(row: GrownSeen, took: float) -> str:
    times = "in each step" if row.across else f"{row.calls:,.0f} times in a loop"
    return f"torch.cat copies a growing tensor {times}: {units.milliseconds(took)}"


def _evidence(row: GrownSeen, took: float) -> str:
    if row.across:
        return (
            f"{units.count(round(row.calls), 'call')} a step; each copies all that earlier steps "
            f"have gathered, {row.largest:,} numbers by then, to add to it: "
            f"{units.milliseconds(took)}, and more with each step"
        )
    return (
        f"{row.calls:,.0f} calls a step, each of which takes the whole result of the one before, "
        f"up to {row.largest:,} numbers, and nothing else reads it until the last call: "
        f"{units.milliseconds(took)}"
    )


def _cure(profile: Profile, row: GrownSeen) -> Cure:
    source = flow.line_source(profile, row.where)
    if row.across:
        return Cure(
            "Append to a list, and concatenate once at the end; what is read meanwhile, allocate "
            "once at its largest size and write into it.",
            savings.lines(
                row.where,
                source,
                "parts.append(part)  # torch.cat(parts) once, after training",
                "# or: table[filled : filled + len(part)] = part; filled += len(part)",
            ),
        )
    return Cure(
        "Append the parts to a list, and concatenate once after the loop.",
        savings.lines(
            row.where,
            source,
            "parts.append(part)  # parts = [] before the loop",
            "out = torch.stack(parts, dim)  # once, after the loop; of parts with dim: torch.cat",
        ),
    )
