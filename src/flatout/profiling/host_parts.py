"""Where a CPU trains: what is between operators, divided up by what the sampled stacks show."""

from __future__ import annotations

import dataclasses

from flatout.nouns.anatomy import Anatomy, Kind, Part
from flatout.nouns.host_time import HostKind, HostTime


def divided(anatomy: Anatomy, host: HostTime) -> Anatomy:
    """The anatomy with "python" split; on an accelerator as it was: the host's time is not its."""
    python = next((part for part in anatomy.parts if part.kind is Kind.PYTHON), None)
    if anatomy.device != "cpu" or python is None:
        return anatomy
    scale = host.scale(anatomy.step_ms)
    wanted = {
        Kind.USER: scale * host.total_ms(HostKind.PYTHON),
        Kind.LIBRARY: scale * host.total_ms(HostKind.LIBRARY),
        Kind.BLOCKED: scale * host.total_ms(HostKind.WAITING),
        Kind.COLLECTING: scale * host.gc_ms,
    }
    total_ms = sum(wanted.values())
    fits = min(1.0, python.ms / total_ms) if total_ms else 0.0
    parts = [Part(kind, ms * fits) for kind, ms in wanted.items() if ms * fits > 0]
    rest_ms = max(0.0, python.ms - sum(part.ms for part in parts))
    rest = dataclasses.replace(python, kind=Kind.DISPATCH, ms=rest_ms)
    others = [part for part in anatomy.parts if part is not python]
    ordered = sorted([*others, *parts, rest], key=lambda part: -part.ms)
    return dataclasses.replace(anatomy, parts=tuple(part for part in ordered if part.ms > 0))
