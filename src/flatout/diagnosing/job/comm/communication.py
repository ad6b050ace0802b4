"""Shared by the checks of communication between devices."""

from __future__ import annotations

from flatout.diagnosing.job import device_memory, savings
from flatout.nouns import units
from flatout.nouns.anatomy import WAITS, Kind
from flatout.nouns.profile import Collective, Profile

OF_GRADIENTS = ("all_reduce", "reduce_scatter", "all_gather")
BUCKET = 25 * 2**20
"""Bytes of DistributedDataParallel's messages, except the first and the last."""

ALL_REDUCE = {True: "all-reduce", False: "all-reduce-cpu"}
"""The ceiling, by whether a device trains."""
DDP_MARK = "DistributedDataParallel.forward"


def of_gradients(profile: Profile) -> list[Collective]:
    """The collectives that exchange gradients and parameters."""
    return [collective for collective in profile.collectives if collective.name in OF_GRADIENTS]


def reduced(profile: Profile) -> list[Collective]:
    """Only the all-reduces, which DistributedDataParallel makes."""
    return [collective for collective in profile.collectives if collective.name == "all_reduce"]


def computing_ms(profile: Profile) -> float:
    """Milliseconds of a step in which the device computes."""
    anatomy = profile.anatomy
    return anatomy.step_ms - anatomy.part(Kind.COMMUNICATION, Kind.COPY, *WAITS)


def wrapped(profile: Profile) -> str | None:
    """The wrapper of the model for several devices, or None."""
    models = profile.job.models if profile.job is not None else ()
    return next((model.wrapped for model in models if model.wrapped), None)


def is_ddp(profile: Profile) -> bool:
    """Whether the model is in DistributedDataParallel, by the job or the trace's mark of it."""
    if profile.job is not None:
        return wrapped(profile) == "DistributedDataParallel"
    return any(operator.name == DDP_MARK for operator in profile.operators)


def bandwidth_gb_per_s(profile: Profile, ranks: int) -> float | None:
    """What `flatout bench` reached here with this many ranks, or None if not measured."""
    return _over_ranks(profile, ALL_REDUCE[savings.accelerated(profile)], ranks)


def _over_ranks(profile: Profile, ceiling_id: str, ranks: int) -> float | None:
    """The value at this number of ranks on a ceiling's curve, or None."""
    ceilings = (ceiling for ceiling in profile.ceilings if ceiling.id == ceiling_id)
    points = (point for ceiling in ceilings for point in ceiling.curve)
    return next((point.value for point in points if point.size.startswith(f"{ranks} ranks")), None)


def gradient_bytes(profile: Profile) -> int | None:
    """Bytes of all gradients of one backward pass, or None if no model was seen."""
    models = profile.job.models if profile.job is not None else ()
    sizes = [model.parameters * device_memory.DTYPE_BYTES.get(model.dtype, 4) for model in models]
    return sum(sizes) or None


def halved(profile: Profile) -> bool:
    """Whether DistributedDataParallel could send the float32 gradients as bfloat16."""
    models = profile.job.models if profile.job is not None else ()
    return wrapped(profile) == "DistributedDataParallel" and all(
        model.dtype == "float32" for model in models
    )


def evidence(collectives: list[Collective]) -> str:
    """For the evidence: 5 messages a step, 8.8 ms, 97 MiB at 11.6 GB/s."""
    calls, spent = (
        sum(collective.calls for collective in collectives),
        sum(collective.ms for collective in collectives),
    )
    sizes = [collective.bytes for collective in collectives if collective.bytes is not None]
    text = f"{calls:,.0f} messages a step, {units.milliseconds(spent)}"
    if not sizes or spent <= 0:
        return text
    return f"{text}, {units.size(sum(sizes))} at {sum(sizes) / spent / 1e6:.1f} GB/s"
