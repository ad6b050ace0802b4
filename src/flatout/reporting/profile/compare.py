"""Two profiles side by side: which parts of the step changed, by how much, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flatout.nouns import units
from flatout.nouns.anatomy import HOST_PARTS, WAITS, Anatomy, Kind
from flatout.nouns.finding import Finding
from flatout.nouns.profile import Profile, Profiled
from flatout.reporting import plain
from flatout.reporting.document import as_json
from flatout.reporting.profile import compare_host, words

COMPARE = "flatout.profile-compare/1"
LEAST = 0.01
"""Changes below this share of the longer step are not reported."""
KERNELS = 20
EXPLAIN = 3
"""The most parts that are named as explaining the difference."""
CODES = {
    "DATA": (Kind.WAIT_DATA, Kind.PYTHON),
    "SYNC": (Kind.WAIT_SYNC,),
    "HOST": (Kind.WAIT_HOST, *HOST_PARTS),
    "COPY": (Kind.COPY, Kind.CONVERSION),
    "COMM": (Kind.COMMUNICATION, Kind.WAIT_RANKS),
}
"""The parts that a family of findings is about, except for `compare_host.CODES`."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A part of the step, before and after."""

    name: str
    before_ms: float
    after_ms: float
    kind: Kind | None = None
    calls_before: float = 0.0
    calls_after: float = 0.0
    why: tuple[str, ...] = ()

    @property
    def ms(self) -> float:
        """The time it adds to the step; negative if it saves time."""
        return self.after_ms - self.before_ms


@dataclasses.dataclass(frozen=True)
class Setting:
    """A fact of the job that differs between the two."""

    name: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class FindingSummary:
    """A finding in only one of the two, in short."""

    code: str
    title: str
    where: str | None
    ratio: float | None


@dataclasses.dataclass(frozen=True)
class ProfileComparison:
    """The differences between two profiles. `ms` are per step."""

    before_ms: float
    after_ms: float
    parts: tuple[Change, ...]
    """The largest change first; the changes add up to the step's."""
    kernels: tuple[Change, ...]
    """Kernels in both profiles whose time changed."""
    appeared: tuple[Change, ...]
    vanished: tuple[Change, ...]
    settings: tuple[Setting, ...]
    gone: tuple[FindingSummary, ...]
    """Findings of the first profile that the second no longer has."""
    new: tuple[FindingSummary, ...]
    stayed: tuple[FindingSummary, ...]
    samples: tuple[float, float] | None = None
    """Samples per step, if both are known."""
    caveats: tuple[str, ...] = ()
    """Why the two are not simply comparable."""

    @property
    def explained(self) -> tuple[tuple[Change, float], ...]:
        """The parts that changed most in the step's direction, and their share of the change."""
        whole = self.after_ms - self.before_ms
        if not whole:
            return ()
        shares = ((change, change.ms / whole) for change in self.parts)
        return tuple(pair for pair in shares if pair[1] >= 0.05)[:EXPLAIN]

    @property
    def ratio(self) -> float | None:
        """How many times as fast the second is, per sample if samples are known."""
        if not self.after_ms or not self.before_ms:
            return None
        per_step = self.before_ms / self.after_ms
        return per_step * self.samples[1] / self.samples[0] if self.samples else per_step


Reasons = dict[str, Sequence[Finding | Change]]


def compare(first: Profiled, second: Profiled) -> ProfileComparison:
    """What changed from `first` to `second`."""
    before, after = first.profile, second.profile
    folded = compare_host.folded(before, after)
    gone = _only(first.findings, second.findings)
    new = _only(second.findings, first.findings)
    changed, appeared, vanished = _kernels(before, after)
    reasons: Reasons = {"gone": gone, "new": new, "appeared": appeared, "vanished": vanished}
    return ProfileComparison(
        before.anatomy.step_ms,
        after.anatomy.step_ms,
        tuple(_parts(*(folded or (before, after)), reasons)),
        changed,
        appeared,
        vanished,
        tuple(_settings(before, after)),
        tuple(map(_brief, gone)),
        tuple(map(_brief, new)),
        tuple(_brief(finding) for finding in second.findings if finding not in new),
        _samples(before, after),
        (*_caveats(first, second), *((compare_host.FOLDED,) if folded else ())),
    )


def document(comparison: ProfileComparison) -> dict[str, Any]:
    """What `flatout compare A B --json` prints."""
    fields = as_json(comparison)
    for name in ("parts", "kernels", "appeared", "vanished"):
        for field, change in zip(fields[name], getattr(comparison, name), strict=True):
            field["ms"] = as_json(change.ms)
    explained = [
        {"part": str(change.kind), "share": share} for change, share in comparison.explained
    ]
    return {"schema": COMPARE, "ratio": comparison.ratio, "explained": explained, **fields}


def _parts(before: Profile, after: Profile, reasons: Reasons) -> Iterator[Change]:
    before_anatomy, after_anatomy = before.anatomy, after.anatomy
    longer = max(before_anatomy.step_ms, after_anatomy.step_ms)
    changes = []
    for kind in Kind:
        before_ms, after_ms = before_anatomy.part(kind), after_anatomy.part(kind)
        if not before_ms and not after_ms:
            continue
        calls = (_launches(before_anatomy, kind), _launches(after_anatomy, kind))
        why: tuple[str, ...] = ()
        if abs(after_ms - before_ms) >= LEAST * longer:
            lines = compare_host.reasons(kind, before, after, LEAST * longer)
            why = (*lines, *_why(kind, before, after, calls, reasons))
        changes.append(Change(words.kind(kind), before_ms, after_ms, kind, *calls, why))
    yield from sorted(changes, key=lambda change: -abs(change.ms))


def _why(
    kind: Kind,
    before: Profile,
    after: Profile,
    calls: tuple[float, float],
    reasons: Reasons,
) -> Iterator[str]:
    """What changed along with this part: findings, launches, operations, kernels."""
    for label, reasons_of in reasons.items():
        for reason in reasons_of:
            if isinstance(reason, Change):
                if reason.kind is kind:
                    yield f"{label}: {words.kernel(reason.name, 60)}"
            elif kind in _about(reason.code):
                place = f" at {reason.where}" if reason.where else ""
                yield f"{label}: {reason.code}{place}, {plain.one_line(reason.title)}"
    noun = "operators" if after.anatomy.device == "cpu" else "launches"
    if kind not in WAITS and abs(calls[0] - calls[1]) > 0.05 * max(calls):
        yield f"{calls[0]:,.0f} -> {calls[1]:,.0f} {noun}"
    flops = (_flops(before.anatomy, kind), _flops(after.anatomy, kind))
    if flops[0] and flops[1] and abs(flops[0] - flops[1]) > 0.05 * max(flops):
        yield f"{flops[1] / flops[0]:.2f} times the operations"
    rates = [
        words.flops_per_s(amount, anatomy.part(kind))
        for amount, anatomy in zip(flops, (before.anatomy, after.anatomy), strict=True)
    ]
    if units.UNKNOWN not in rates and rates[0] != rates[1]:
        yield f"{rates[0]} -> {rates[1]}"


def _about(code: str) -> tuple[Kind, ...]:
    """The parts that a finding is about."""
    family = code.rstrip("0123456789")
    return compare_host.CODES.get(code, CODES.get(family, ()))


def _kernels(
    before: Profile, after: Profile
) -> tuple[tuple[Change, ...], tuple[Change, ...], tuple[Change, ...]]:
    """Kernels in both, only in the second, only in the first; the largest change first."""
    before_kernels, after_kernels = _by_name(before), _by_name(after)
    least = LEAST / 10 * max(before.anatomy.step_ms, after.anatomy.step_ms)
    changes = []
    for name in {**before_kernels, **after_kernels}:
        earlier, later = before_kernels.get(name), after_kernels.get(name)
        kind = (later or earlier or (None,))[0]
        before_ms, before_calls = earlier[1:] if earlier else (0.0, 0.0)
        after_ms, after_calls = later[1:] if later else (0.0, 0.0)
        changes.append(Change(name, before_ms, after_ms, kind, before_calls, after_calls))
    changes = [change for change in changes if abs(change.ms) >= least]
    changes.sort(key=lambda change: -abs(change.ms))
    common = [
        change
        for change in changes
        if change.name in before_kernels and change.name in after_kernels
    ]
    appeared = [change for change in changes if change.name not in before_kernels]
    vanished = [change for change in changes if change.name not in after_kernels]
    return tuple(common[:KERNELS]), tuple(appeared[:KERNELS]), tuple(vanished[:KERNELS])


def _by_name(profile: Profile) -> dict[str, tuple[Kind, float, float]]:
    """Kind, milliseconds and calls of each kernel; on a CPU of each operator."""
    kernels: dict[str, tuple[Kind, float, float]] = {}
    if profile.anatomy.device == "cpu":
        timed = [(row.name, row.kind, row.host_ms, row.calls) for row in profile.operators]
    else:
        timed = [(row.name, row.kind, row.ms, row.calls) for row in profile.kernels]
    for name, kind, ms, calls in timed:
        _, ms_before, calls_before = kernels.get(name, (kind, 0.0, 0.0))
        kernels[name] = (kind, ms_before + ms, calls_before + calls)
    return kernels


def _settings(before: Profile, after: Profile) -> Iterator[Setting]:
    """Facts of the job and the loop that differ: workers, dtypes, compiled, versions."""
    if before.job is None or after.job is None:
        return
    before_facts, after_facts = _flat(as_json(before.job)), _flat(as_json(after.job))
    for name in dict.fromkeys([*before_facts, *after_facts]):
        if name in ("step_s", "wait_share") or before_facts.get(name) == after_facts.get(name):
            continue
        yield Setting(name, _shown(before_facts.get(name)), _shown(after_facts.get(name)))


def _flat(raw: Any, name: str = "") -> dict[str, Any]:
    """Leaves by path: loaders[0].num_workers."""
    if isinstance(raw, dict):
        branches = [_flat(value, f"{name}.{key}" if name else key) for key, value in raw.items()]
    elif isinstance(raw, list):
        branches = [_flat(value, f"{name}[{number}]") for number, value in enumerate(raw)]
    else:
        return {name: raw}
    return {key: value for leaves in branches for key, value in leaves.items()}


def _shown(value: Any) -> str:
    return "-" if value is None else plain.one_line(str(value))


def _samples(before: Profile, after: Profile) -> tuple[float, float] | None:
    if before.seen is None or after.seen is None:
        return None
    samples = (before.seen.samples, after.seen.samples)
    return samples if all(samples) else None


def _caveats(first: Profiled, second: Profiled) -> Iterator[str]:
    before, after = first.profile, second.profile
    if before.anatomy.device != after.anatomy.device:
        yield f"one trained on {before.anatomy.device}, the other on {after.anatomy.device}"
    elif before.device_name != after.device_name:
        names = [_shown(profile.device_name) for profile in (before, after)]
        yield f"different hardware: {names[0]}, then {names[1]}"
    samples = _samples(before, after)
    if samples and abs(samples[0] - samples[1]) > 0.01 * max(samples):
        yield f"a step holds {samples[0]:g} samples, then {samples[1]:g}: the ratio is per sample"
    if not (before.trace_steps and after.trace_steps):
        yield "a trace marks no steps: its whole window is compared"
    if len(before.ranks) != len(after.ranks):
        yield f"{max(len(before.ranks), 1)} ranks, then {max(len(after.ranks), 1)}"


def _only(findings: Iterable[Finding], others: Iterable[Finding]) -> list[Finding]:
    """The findings whose code and place the others do not have."""
    other_keys = {(finding.code, finding.where) for finding in others}
    return [finding for finding in findings if (finding.code, finding.where) not in other_keys]


def _brief(finding: Finding) -> FindingSummary:
    ratio = finding.gain.ratio if finding.gain else None
    return FindingSummary(finding.code, plain.one_line(finding.title), finding.where, ratio)


def _launches(anatomy: Anatomy, kind: Kind) -> float:
    return sum(part.launches for part in anatomy.parts if part.kind is kind)


def _flops(anatomy: Anatomy, kind: Kind) -> float:
    return sum(part.flops or 0.0 for part in anatomy.parts if part.kind is kind)
