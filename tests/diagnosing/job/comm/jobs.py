"""Jobs and their parts for the tests of COMM."""

from __future__ import annotations

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.ceiling import Ceiling, Point
from flatout.nouns.profile import Collective, Profile
from flatout.profiling.trace.analysing import analyse
from flatout.profiling.trace.reading import read
from profiling.trace.making import real


def exchanging(collective: Collective, **changes: object) -> Profile:
    return made.ddp_profile(
        {Kind.COMMUNICATION: collective.exposed_ms}, collectives=(collective,), **changes
    )


def ceilings(ranks: int, gb_per_s: float = 0.0, latency_us: float = 0.0) -> tuple[Ceiling, ...]:
    """As `flatout bench` measures them over the GPUs; 0: not measured."""
    measured = (("all-reduce", gb_per_s, "GB/s"), ("all-reduce-latency", latency_us, "us"))
    return tuple(
        Ceiling(name, name, "cuda:0", value, unit, curve=(Point(f"{ranks} ranks, 1 KiB", value),))
        for name, value, unit in measured
        if value
    )


def recorded(name: str) -> Profile:
    """A real trace, without a job."""
    return analyse(read([real(name)])[0])
