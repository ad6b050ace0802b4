"""Calls of packages that lead to a tensor which is the same in each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from flatout.diagnosing.checks import Diagnosis
from flatout.diagnosing.job import flow, host_lines, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure
from flatout.nouns.host_time import HostKind, HostLine
from flatout.nouns.profile import Profile
from flatout_agent.wire import HostConstantSeen


def other_lines(profile: Profile) -> list[HostLine]:
    """Lines that call packages for other purposes, the longest first."""
    lines = host_lines.of(profile, HostKind.LIBRARY)
    return [line for line in lines if flow.host_constant(profile, str(line.where)) is None]


def diagnoses(profile: Profile) -> Iterator[Diagnosis]:
    """One diagnosis for each function that makes such a tensor."""
    lines: dict[HostConstantSeen, list[HostLine]] = defaultdict(list)
    for line in host_lines.of(profile, HostKind.LIBRARY):
        row = flow.host_constant(profile, str(line.where))
        if row is not None:
            lines[row].append(line)
    for row, members in lines.items():
        for group in host_lines.together(profile, members):
            saves = host_lines.saved_ms(profile, group.ms, 1.0)
            if not host_lines.worth(profile, group) or not savings.worth(profile, saves):
                continue
            called = "" if row.function.startswith("<") else f" in {row.function}()"
            packages = ", ".join(dict.fromkeys(line.package for line in group.lines))
            text = flow.line_source(profile, row.where) or group.where.source
            yield Diagnosis(
                title=f"computing the same tensor again by {packages}{called} takes "
                f"{units.milliseconds(group.ms)}, "
                f"{units.share(group.ms / profile.anatomy.step_ms)} of the step",
                evidence=f"{host_lines.evidence(profile, group)}; it ends at {row.where} in a "
                f"tensor of {row.dtype} {row.shape}, {row.calls:.3g} a step, of equal bytes in two "
                "consecutive steps",
                cure=Cure(
                    "Keep the tensor and compute it again only when what it is made of changes "
                    "(functools.lru_cache on its function); what never changes, once before "
                    "training.",
                    savings.lines(row.where, text, "# only when its inputs change; else kept"),
                ),
                severity=savings.severity(profile, saves),
                where=str(group.where),
                saves_ms=saves,
                reason=f"{units.milliseconds(group.ms)} in {packages}, on the host",
                covers=tuple(dict.fromkeys(str(line.where) for line in group.lines)),
            )
