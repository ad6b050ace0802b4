"""Two profiles side by side: which parts of the step changed, by how much, and what else did."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from flatout.nouns.anatomy import HOST_PARTS, Kind
from flatout.nouns.finding import Finding
from flatout.nouns.host_time import total_ms
from flatout.nouns.profile import Profile, Profiled
from flatout.reporting import plain
from flatout.reporting.document import as_json
from flatout.reporting.profile import host, words

COMPARE = "flatout.profile-compare/2"
LEAST_KERNEL, LEAST_LINE = 0.001, 0.01
"""Changes below this share of the longer step are left out; lines are sampled, and so less sure."""
AT_MOST = 20
"""The most kernels and lines."""
FINER = tuple(kind for kind in HOST_PARTS if kind is not Kind.PYTHON)
"""Known only if stacks were sampled; otherwise they are one part, "Python and dispatch"."""
FOLDED = (
    "one was recorded without lines of the host: all that is between operators is compared as "
    "one part"
)


@dataclasses.dataclass(frozen=True)
class Change:
    """A part of the step, a kernel or a line, before and after."""

    name: str
    before_ms: float
    after_ms: float
    kind: Kind | None = None
    calls_before: float = 0.0
    calls_after: float = 0.0

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
    """The differences between two profiles. `ms` are per step; the largest change comes first."""

    before_ms: float
    after_ms: float
    parts: tuple[Change, ...]
    """The changes add up to the step's."""
    kernels: tuple[Change, ...]
    """Kernels whose time changed; on a CPU operators. One that is only in one has no calls in the
    other."""
    lines: tuple[Change, ...]
    """Lines of the host whose time changed."""
    settings: tuple[Setting, ...]
    gone: tuple[FindingSummary, ...]
    """Findings of the first profile that the second no longer has."""
    new: tuple[FindingSummary, ...]
    samples: tuple[float, float] | None = None
    """Samples per step, if both are known."""
    caveats: tuple[str, ...] = ()
    """Why the two are not simply comparable."""

    @property
    def ratio(self) -> float | None:
        """How many times as fast the second is, per sample if samples are known."""
        if not self.after_ms or not self.before_ms:
            return None
        per_step = self.before_ms / self.after_ms
        return per_step * self.samples[1] / self.samples[0] if self.samples else per_step


def compare(first: Profiled, second: Profiled) -> ProfileComparison:
    """What changed from `first` to `second`."""
    before, after = first.profile, second.profile
    steps = before.anatomy.step_ms, after.anatomy.step_ms
    kinds: dict[Kind, tuple[Kind, ...]] = {kind: (kind,) for kind in Kind}
    if _is_folded(before, after):
        kinds = {kind: (kind,) for kind in Kind if kind not in FINER}
        kinds[Kind.PYTHON] = HOST_PARTS
    changes = (
        Change(words.kind(kind), before.anatomy.part(*of), after.anatomy.part(*of), kind)
        for kind, of in kinds.items()
    )
    used = [change for change in changes if change.before_ms or change.after_ms]
    return ProfileComparison(
        *steps,
        tuple(sorted(used, key=lambda change: -abs(change.ms))),
        _largest(_changes(_kernels(before), _kernels(after)), LEAST_KERNEL * max(steps)),
        _largest(_changes(_lines(before), _lines(after)), LEAST_LINE * max(steps)),
        tuple(_settings(before, after)),
        tuple(_only(first.findings, second.findings)),
        tuple(_only(second.findings, first.findings)),
        _samples(before, after),
        tuple(_caveats(before, after)),
    )


def document(comparison: ProfileComparison) -> dict[str, Any]:
    """What `flatout compare A B --json` prints."""
    fields = as_json(comparison)
    for name in ("parts", "kernels", "lines"):
        for field, change in zip(fields[name], getattr(comparison, name), strict=True):
            field["ms"] = as_json(change.ms)
    return {"schema": COMPARE, "ratio": comparison.ratio, **fields}


def _largest(changes: Iterable[Change], least_ms: float) -> tuple[Change, ...]:
    ordered = sorted(changes, key=lambda change: -abs(change.ms))
    return tuple(change for change in ordered[:AT_MOST] if abs(change.ms) >= least_ms)


def _is_folded(before: Profile, after: Profile) -> bool:
    """Whether one of the two has finer parts of the time between operators than the other."""
    anatomies = before.anatomy, after.anatomy
    finer = [anatomy.part(*FINER) > 0 for anatomy in anatomies]
    return finer[0] != finer[1] and any(anatomy.part(Kind.PYTHON) for anatomy in anatomies)


class _Timed(NamedTuple):
    """A kernel or a line of one profile."""

    name: str
    kind: Kind | None
    ms: float
    calls: float = 0.0


def _changes(
    before: Mapping[Hashable, _Timed], after: Mapping[Hashable, _Timed]
) -> Iterator[Change]:
    for key in {**before, **after}:
        known = after.get(key) or before[key]
        absent = known._replace(ms=0.0, calls=0.0)
        then, now = before.get(key, absent), after.get(key, absent)
        yield Change(known.name, then.ms, now.ms, known.kind, then.calls, now.calls)


def _kernels(profile: Profile) -> dict[Hashable, _Timed]:
    """The kernels by name, or the operators on a CPU."""
    found: dict[Hashable, _Timed] = {}
    if profile.anatomy.device == "cpu":
        timed = [_Timed(row.name, row.kind, row.host_ms, row.calls) for row in profile.operators]
    else:
        timed = [_Timed(row.name, row.kind, row.ms, row.calls) for row in profile.kernels]
    for row in timed:
        same = found.get(row.name, row._replace(ms=0.0, calls=0.0))
        found[row.name] = row._replace(ms=same.ms + row.ms, calls=same.calls + row.calls)
    return found


def _lines(profile: Profile) -> dict[Hashable, _Timed]:
    """The host's lines by function and text: a number changes with every edit above the line.

    The milliseconds are those of an undisturbed step.
    """
    by_line = defaultdict(list)
    for line in profile.host.of(*host.OWN) if profile.host is not None else ():
        by_line[line.where.function, line.where.source or str(line.where)].append(line)
    factor = host.scale(profile)
    timed: dict[Hashable, _Timed] = {}
    for key, group in by_line.items():
        longest = max(group, key=lambda line: line.ms)
        text = longest.callee or longest.where.source
        name = plain.one_line(f"{longest.where} {text}".strip())
        timed[key] = _Timed(name, None, factor * total_ms(group))
    return timed


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


def _caveats(before: Profile, after: Profile) -> Iterator[str]:
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
    if _is_folded(before, after):
        yield FOLDED


def _only(findings: Iterable[Finding], others: Iterable[Finding]) -> Iterator[FindingSummary]:
    """The findings whose code and place the others do not have."""
    other_keys = {(finding.code, finding.where) for finding in others}
    for finding in findings:
        if (finding.code, finding.where) not in other_keys:
            title, gain = plain.one_line(finding.title), finding.gain
            yield FindingSummary(finding.code, title, finding.where, gain.ratio if gain else None)
