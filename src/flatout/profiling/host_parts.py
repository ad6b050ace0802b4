"""If a CPU trains: divide the time between operators by the sampled stacks."""

from __future__ import annotations

import dataclasses

from flatout.nouns.anatomy import WAITS, Anatomy, Kind, Part
from flatout.nouns.host_time import HostKind, HostTime

MOST = 0.98
"""Largest share of the time without waiting that the host's own parts may take."""


def divided(anatomy: Anatomy, host: HostTime) -> Anatomy:
    """The anatomy with "python" split. On an accelerator it is unchanged.

    The stacks were sampled in undisturbed steps. If they show more time between operators than the
    recording, too much of its overhead was subtracted there, and operators are shortened.
    """
    python = next((part for part in anatomy.parts if part.kind is Kind.PYTHON), None)
    if anatomy.device != "cpu" or python is None:
        return anatomy
    waits = [part for part in anatomy.parts if part.kind in WAITS]
    operators = [part for part in anatomy.parts if part not in waits and part is not python]
    room_ms = anatomy.step_ms - sum(part.ms for part in waits)
    # The host's own parts, together at most `most_ms`.
    scale = host.scale(anatomy.step_ms)
    most_ms = MOST * room_ms
    times = {
        Kind.USER: scale * host.total_ms(HostKind.PYTHON),
        Kind.LIBRARY: scale * host.total_ms(HostKind.LIBRARY),
        Kind.BLOCKED: scale * host.total_ms(HostKind.WAITING),
        Kind.COLLECTING: scale * host.gc_ms,
    }
    total_ms = sum(times.values())
    fits = min(1.0, most_ms / total_ms) if total_ms > 0 else 0.0
    parts = [Part(kind, ms * fits) for kind, ms in times.items() if ms * fits > 0]
    host_ms = sum(part.ms for part in parts)
    rest = dataclasses.replace(python, kind=Kind.DISPATCH, ms=max(0.0, python.ms - host_ms))
    others = [*operators, rest]
    others_ms = sum(part.ms for part in others)
    shrunk = (room_ms - host_ms) / others_ms if others_ms else 1.0
    others = [dataclasses.replace(part, ms=part.ms * shrunk) for part in others]
    ordered = sorted([*waits, *others, *parts], key=lambda part: -part.ms)
    return dataclasses.replace(anatomy, parts=tuple(part for part in ordered if part.ms > 0))
