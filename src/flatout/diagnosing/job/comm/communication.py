"""Communication between devices: what the checks of it share."""

from __future__ import annotations

from flatout.diagnosing.job import device_memory, savings
from flatout.nouns import units
from flatout.nouns.anatomy import WAITS, Kind
from flatout.nouns.profile import Collective, Profile

OF_GRADIENTS = ("all_reduce", "reduce_scatter", "all_gather")
BUCKET = 25 * 2**20
"""Bytes of DistributedDataParallel's messages, but for the first and the last."""

ALL_REDUCE = {True: "all-reduce", False: "all-reduce-cpu"}
"""The ceiling, by whether a device trains."""
DDP_MARK = "DistributedDataParallel.forward"


def of_gradients(profile: Profile) -> list[Collective]:
    """What exchanges gradients and parameters."""
    return [collective for collective in profile.collectives if collective.name in OF_GRADIENTS]


def reduced(profile: Profile) -> list[Collective]:
    """All-reduces alone: what DistributedDataParallel does."""
    return [collective for collective in profile.collectives if collective.name == "all_reduce"]


def computing_ms(profile: Profile) -> float:
    """When the device computes."""
    anatomy = profile.anatomy
    return anatomy.step_ms - anatomy.part(Kind.COMMUNICATION, Kind.COPY, *WAITS)


def wrapped(profile: Profile) -> str | None:
    """What the model is wrapped in for several devices."""
    models = profile.job.models if profile.job is not None else ()
    return next((model.wrapped for model in models if model.wrapped), None)


def is_ddp(profile: Profile) -> bool:
    """DistributedDataParallel: seen in the job, or by its mark in a trace."""
    if profile.job is not None:
        return wrapped(profile) == "DistributedDataParallel"
    return any(operator.name == DDP_MARK for operator in profile.operators)


def bandwidth_gb_per_s(profile: Profile, ranks: int) -> float | None:
    """What `flatout bench` reached here over so many ranks; None: not measured."""
    return _over_ranks(profile, ALL_REDUCE[savings.accelerated(profile)], ranks)


def latency_ms(profile: Profile, ranks: int) -> float | None:
    """Of a small all-reduce over so many ranks; None: not measured."""
    us = _over_ranks(profile, f"{ALL_REDUCE[savings.accelerated(profile)]}-latency", ranks)
    return None if us is None else us / 1000


def _over_ranks(profile: Profile, ceiling_id: str, ranks: int) -> float | None:
    """The point of a curve over numbers of ranks."""
    ceilings = (ceiling for ceiling in profile.ceilings if ceiling.id == ceiling_id)
    points = (point for ceiling in ceilings for point in ceiling.curve)
    return next((point.value for point in points if point.size.startswith(f"{ranks} ranks")), None)


def gradient_bytes(profile: Profile) -> int | None:
    """Of all gradients of one backward pass; None: no model was seen."""
    models = profile.job.models if profile.job is not None else ()
    sizes = [model.parameters * device_memory.DTYPE_BYTES.get(model.dtype, 4) for model in models]
    return sum(sizes) or None


def halved(profile: Profile) -> bool:
    """Gradients are float32 and DistributedDataParallel could send them as bfloat16."""
    models = profile.job.models if profile.job is not None else ()
    return wrapped(profile) == "DistributedDataParallel" and all(
        model.dtype == "float32" for model in models
    )


def evidence(collectives: list[Collective]) -> str:
    """For evidence: 5 messages a step, 8.8 ms, 97 MiB at 11.6 GB/s."""
    calls, spent = (
        sum(collective.calls for collective in collectives),
        sum(collective.ms for collective in collectives),
    )
    sizes = [collective.bytes for collective in collectives if collective.bytes is not None]
    text = f"{calls:,.0f} messages a step, {units.milliseconds(spent)}"
    if not sizes or spent <= 0:
        return text
    return f"{text}, {units.size(sum(sizes))} at {sum(sizes) / spent / 1e6:.1f} GB/s"
