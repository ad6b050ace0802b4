"""A tensor is created on the host in each step and then moved to the device.

## What it sees

A line creates a tensor (`torch.zeros`, `torch.arange`, `torch.tensor` ...) and copies it to the
device in each step. On a CPU: a line creates masks or positions (`torch.ones`, `torch.tril`,
`torch.arange` ...) again in each step, and that takes time. If the bytes were compared, LOOP017
reports those that are the same in each step. Values that `torch.tensor` still converts then change,
and only half of that time can be saved. At most the line's time in sampled stacks counts.

## Why it matters

The host fills the memory, copies from it unpinned, and waits for the copy, so the device runs out
of work. Created on the device, the tensor costs one kernel; created once, nothing.

## Cure

Pass `device=device` to the call that creates it; if it is the same in each step, create it once
before the loop (in a module: `register_buffer`). The gain: the exposed copy and the idle time after
it; on a CPU the time on the line.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, flow, host_lines, savings, stalls
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Copy, Place, Profile

CHECK = Check(code="COPY004", severity=Severity.WARNING, since="0.2.0")
THE_SAME = re.compile(r"torch\.(ones|full|arange|linspace|eye|tril|triu|tensor|hann_window)\(")
"""Tensors that are usually the same in each step; zeros would be buffers to fill."""
MOVED = re.compile(r"^(.*torch\.\w+\(.*)\)\.(?:to|cuda)\([^()]*\)(.*)$")
MAKING = re.compile(
    r"aten::(ones|full|arange|linspace|eye|tril|triu|fill_|lift_fresh|hann_window|empty|detach_?)"
)
"""Operators that make such a tensor; others on the line compute."""
CONVERTED_HERE = re.compile(r"torch\.tensor\((?!\s*[\[(]*\s*[-\d.])")
"""Conversions of values other than literal numbers."""
CONVERTED = 0.5
"""Share of the time saved if the values come as an array or a tensor."""
FUNCTIONS = ("__getitem__", "__iter__", "__next__", "collate_fn", "collate")
"""These create tensors for each sample; the checks of the loader report them."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line that makes one."""
    if not savings.accelerated(profile):
        yield from _on_cpu(profile)
        return
    for copy in copies.to_device(profile):
        place = copy.where
        if place is not None and copies.built_here(copy) and "device=" not in place.source:
            yield from _copied(profile, copy, place)


def _copied(profile: Profile, copy: Copy, place: Place) -> Iterator[Diagnosis]:
    idle = sum(sync.idle_ms for sync in stalls.uploads(profile) if sync.where == place)
    host = sum(row.host_ms for row in profile.operators if row.where == place)
    saves = savings.within(profile, copy.exposed_ms + idle)
    if copy.calls < 0.5 or not savings.worth(profile, saves):
        return
    moved = MOVED.match(place.source)
    after = f"{moved[1]}, device=device){moved[2]}" if moved else "torch.zeros(..., device=device)"
    yield Diagnosis(
        title="a tensor is created on the host in each step",
        evidence=f"{copies.evidence([copy])}; {units.milliseconds(host)} on the host, the device "
        f"idle for {units.milliseconds(idle)} after it",
        cure=Cure(
            "Create it on the device: device=device; or once, before the loop.",
            savings.lines(place, place.source, after),
        ),
        severity=savings.severity(profile, saves),
        where=str(place),
        saves_ms=saves,
        reason=f"the exposed copy of {units.milliseconds(copy.exposed_ms)} and "
        f"{units.milliseconds(idle)} in which the device waits go",
    )


def _on_cpu(profile: Profile) -> Iterator[Diagnosis]:
    spent, sources = _line_costs(profile)
    constant = flow.constant_lines(profile)
    for where, ms in spent.items():
        if where in constant:
            continue
        changing = _changes(profile, sources.get(where, ""))
        saves = savings.within(profile, ms * (CONVERTED if changing else 1.0))
        if savings.worth(profile, saves):
            yield Diagnosis(
                title="a tensor is created from Python values in each step",
                evidence=f"{units.milliseconds(ms)} a step on this line",
                cure=_cure(where, sources.get(where, ""), changing),
                severity=savings.severity(profile, saves),
                where=where,
                saves_ms=saves,
                reason=("half of " if changing else "")
                + f"the {units.milliseconds(ms)} of a step on this line",
            )


def _changes(profile: Profile, source: str) -> bool:
    """Whether the converted values differ from step to step, as far as the flow shows."""
    return flow.of(profile) is not None and CONVERTED_HERE.search(source) is not None


def _cure(where: str, source: str, changing: bool) -> Cure:
    if changing:
        return Cure(
            "Keep the values in an array or a tensor from the start (torch.from_numpy copies "
            "nothing): a list is read number by number. Compute them for all at once.",
            savings.lines(where, source, "values = torch.from_numpy(array)  # no Python lists"),
        )
    return Cure(
        "Create it once, before the loop; in a module, register it as a buffer.",
        savings.lines(
            where, source, 'self.register_buffer("made", ..., persistent=False)  # in __init__'
        ),
    )


def _line_costs(profile: Profile) -> tuple[dict[str, float], dict[str, str]]:
    """Milliseconds a step, and source, of lines whose tensors may be the same each time."""
    spent: dict[str, float] = {}
    sources: dict[str, str] = {}
    for operator in profile.operators:
        place = operator.where
        if place is None or operator.backward or place.function.rpartition(".")[2] in FUNCTIONS:
            continue
        if not MAKING.fullmatch(operator.name) or operator.calls < 0.5:
            continue
        if THE_SAME.search(place.source):
            spent[str(place)] = spent.get(str(place), 0.0) + operator.host_ms
            sources[str(place)] = place.source
    for call in profile.seen.calls if profile.seen is not None else ():
        constant = THE_SAME.match(f"{call.name}(") and call.where is not None
        if constant and call.where is not None and call.calls >= 0.5:
            spent[call.where] = max(spent.get(call.where, 0.0), call.s * 1000)
    for line in profile.host.lines if profile.host is not None else ():
        sources.setdefault(str(line.where), line.where.source)
    return {where: min(ms, _sampled_ms(profile, where)) for where, ms in spent.items()}, sources


def _sampled_ms(profile: Profile, where: str) -> float:
    """Milliseconds of a line in the step by sampled stacks, without evaluation."""
    lines = host_lines.of(profile, *HostKind)
    if not lines:
        return math.inf
    ms = sum(line.ms for line in lines if str(line.where) == where)
    return host_lines.scale(profile) * ms
