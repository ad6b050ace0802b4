"""A tensor that never changes is built anew in each step.

## What it sees

Operators that make a tensor from numbers, or from tensors that training does not change, and give
the same shape, dtype and bytes in two consecutive steps: masks, positions, tables, one-hot targets,
converted constants, the mean of the whole data set, features of a fixed image through a frozen
network, named by the outermost call that gives nothing else. These do not count: random tensors,
the loader's, tensors that are only filled with a number or written to later, a layer's results for
a fixed input by code that it also runs on changing input, and results of a target network (frozen,
and given the weights of a trained one from time to time). Tensors below 1 KiB count only if they
are made of the same tensors and take time to make. Tensors on an accelerator are compared by the
operators and numbers that make them, and reported as likely.

## Why it matters

A causal mask over 2,000 positions is 4 million numbers, built in several passes and thrown away,
in each layer and step. Built once it costs nothing.

## Cure

Build it once: before the loop, in a module's `__init__` with `register_buffer`, or in a function
under `functools.lru_cache` with size, dtype and device as arguments. The gain: the time of the
operators that build it.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer
- https://docs.python.org/3/library/functools.html#functools.lru_cache
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import ConstantSeen

CHECK = Check(code="LOOP017", severity=Severity.WARNING, since="0.2.0")
MOVING = {"aten._to_copy", "aten.copy_"}


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line that ends in a constant."""
    seen = flow.of(profile)
    for row in seen.constants if seen is not None else ():
        if savings.accelerated(profile) and set(row.operators) <= MOVING:
            continue  # copied to the device each step: the check of such copies reports it
        took = flow.constant_ms(profile, row)
        saving = device_time.of_step(
            profile, took, f"the {units.milliseconds(took)} in which it is built"
        )
        if not saving.worth:
            continue
        likely = "" if row.compared else "likely "
        yield Diagnosis(
            title=_title(row, likely),
            evidence=f"{row.dtype} {row.shape}, {row.calls:.3g} a step, {units.size(row.bytes)}, "
            f"by {', '.join(row.operators[:6])} on {_lines(row)}: "
            f"{units.milliseconds(took)}; {_equal(row)} in two consecutive steps",
            cure=_cure(profile, row),
            severity=saving.severity,
            where=row.where,
            saves_ms=saving.ms,
            reason=saving.reason,
        )


def _title(row: ConstantSeen, likely: str) -> str:
    if row.shared and row.called:
        return f"{row.called}() computes what is {likely}the same in each step again"
    return f"{_what(row)} that is {likely}the same in each step is built anew"


def _cure(profile: Profile, row: ConstantSeen) -> Cure:
    line = flow.line_source(profile, row.where)
    if row.shared:
        called = f"{row.called}()" if row.called else "it"
        return Cure(
            f"Call {called} once, before the loop or in a module's __init__, and keep what it "
            "gives: its inputs and weights do not change.",
            savings.lines(row.where, line, "# once, before the loop; then use what was kept"),
        )
    return Cure(
        "Build it once: before the loop, or in a module as a buffer.",
        savings.lines(
            row.where,
            line,
            'self.register_buffer("constant", ..., persistent=False)  # in __init__',
        ),
    )


def _what(row: ConstantSeen) -> str:
    return f"a tensor of {row.shape}" if row.shape else "a number"


def _equal(row: ConstantSeen) -> str:
    if row.compared:
        return "equal bytes"
    return "made by the same operators from the same numbers"


def _lines(row: ConstantSeen) -> str:
    others = [line for line in row.lines if line != row.where]
    return row.where + (f" (and {', '.join(others[:3])})" if others else "")
