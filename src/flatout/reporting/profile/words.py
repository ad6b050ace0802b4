"""The words of a profile: the same in the terminal, the page and a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatout.nouns import amdahl, units
from flatout.nouns.anatomy import IDLE, WAITS, Anatomy, Kind, Part
from flatout.nouns.finding import LARGEST, Finding, Gain
from flatout.nouns.profile import Place, Profile, Profiled
from flatout.reporting import plain

KINDS = {
    Kind.TENSOR_CORES: "tensor cores",
    Kind.MATMUL: "matmul and convolution",
    Kind.ATTENTION: "attention",
    Kind.NORMALISATION: "normalisation",
    Kind.ELEMENTWISE: "elementwise",
    Kind.REDUCTION: "reductions",
    Kind.OPTIMIZER: "optimizer",
    Kind.CONVERSION: "layout and dtype changes",
    Kind.COPY: "host-device copies",
    Kind.COMMUNICATION: "communication",
    Kind.OTHER: "other work",
    Kind.PYTHON: "Python and dispatch",
    Kind.DISPATCH: "dispatch of operators",
    Kind.USER: "your Python",
    Kind.LIBRARY: "other packages",
    Kind.COLLECTING: "garbage collection",
    Kind.BLOCKED: "blocked on the host",
    Kind.WAIT_DATA: "waiting for data",
    Kind.WAIT_HOST: "waiting for launches",
    Kind.WAIT_SYNC: "waiting after a sync",
    Kind.WAIT_RANKS: "waiting for ranks",
    Kind.WAIT_OTHER: "waiting, cause unknown",
    Kind.WAIT_QUEUED: "between queued kernels",
    Kind.UNRECORDED: "not recorded",
}
"""At most 24 characters each."""
MEANINGS = {
    Kind.TENSOR_CORES: "Matrix products and convolutions on tensor cores (AMD: matrix cores).",
    Kind.MATMUL: "Matrix products and convolutions; on a GPU those without tensor cores.",
    Kind.ATTENTION: "Fused attention.",
    Kind.NORMALISATION: "Batch, layer, group and RMS normalisation.",
    Kind.ELEMENTWISE: "One result per element: activations, dropout, additions, masks.",
    Kind.REDUCTION: "Sums, softmax, losses, sorting, gathering from embeddings.",
    Kind.OPTIMIZER: "The optimizer's step.",
    Kind.CONVERSION: "Layout and dtype conversions, copies on the device itself.",
    Kind.COPY: "Between host and device, while nothing computes.",
    Kind.COMMUNICATION: "Between devices, while nothing computes: exposed.",
    Kind.OTHER: "Kernels and operators that no rule knows.",
    Kind.PYTHON: "Between operators: Python itself and torch's dispatch.",
    Kind.DISPATCH: "Between operators: torch's own Python and its dispatch.",
    Kind.USER: "Your own Python, with the built-in functions that it calls.",
    Kind.LIBRARY: "Packages other than torch: metrics, tokenisers, images, logging.",
    Kind.COLLECTING: "Python's garbage collector.",
    Kind.BLOCKED: "The training thread waits: a file, a lock, another process, sleep.",
    Kind.WAIT_DATA: "The loader had no batch ready.",
    Kind.WAIT_HOST: "The host launches kernels more slowly than the device runs them.",
    Kind.WAIT_SYNC: "The host waited for the device, which ran dry until the next launch arrived.",
    Kind.WAIT_RANKS: "Another rank was later.",
    Kind.WAIT_OTHER: "Nothing ran, and no cause was found.",
    Kind.WAIT_QUEUED: "The device takes some microseconds to start each kernel, queued or not.",
    Kind.UNRECORDED: "The device had work that the trace does not have: CUDA graphs, lost events.",
}
NO_OBJECTION = "work that no check objects to"
EXPLAINED = {
    Kind.COPY: "copies while nothing computes",
    Kind.COMMUNICATION: "exchanges while nothing computes; start them early, wait for them late",
    Kind.PYTHON: "the host's own time; flatout profile SCRIPT shows its lines",
    Kind.DISPATCH: "torch's own time on the host",
    Kind.USER: "the report has its lines",
    Kind.LIBRARY: "the report has its lines",
    Kind.BLOCKED: "the report has its lines",
    Kind.COLLECTING: "Python's collector",
    Kind.WAIT_DATA: "the loader has no batch ready",
    Kind.WAIT_HOST: "the host launches too late",
    Kind.WAIT_SYNC: "calls of the host wait for the device",
    Kind.WAIT_RANKS: "another rank is later",
    Kind.WAIT_OTHER: "nothing that was recorded explains it",
    Kind.WAIT_QUEUED: "the device starts short kernels one after another",
    Kind.UNRECORDED: "the trace does not have that work",
    Kind.OTHER: "no rule knows these kernels",
}
"""Why the largest part is as it is; all other kinds are work."""
DEVICES = {"cuda": "GPU", "xpu": "GPU", "mps": "GPU", "cpu": "CPU"}
LEAST_IDLE = 0.20
"""From this share of the step on, the headline names idleness."""


def kind(value: Kind | None) -> str:
    """The kind's name for people; "other work" if None."""
    return KINDS[value or Kind.OTHER]


def device(anatomy: Anatomy) -> str:
    """GPU, CPU, or the backend's own name in capitals."""
    return DEVICES.get(anatomy.device, anatomy.device.upper())


def headline(profile: Profile) -> str:
    """Where the step's time goes, in one line."""
    anatomy = profile.anatomy
    step = f"{units.milliseconds(anatomy.step_ms)} per step"
    if not profile.trace_steps:
        step = f"{units.milliseconds(anatomy.step_ms)} recorded, no steps marked"
    idle, unseen = anatomy.share(*IDLE), anatomy.share(Kind.UNRECORDED)
    waits = [part for part in anatomy.parts if part.kind in WAITS and part.ms > 0]
    if waits and idle + unseen >= LEAST_IDLE:
        largest_part = max(waits, key=lambda part: part.ms)
        wait = f"{units.milliseconds(largest_part.ms)} of it {kind(largest_part.kind)}"
        if anatomy.device == "cpu" or largest_part.kind is Kind.UNRECORDED:
            return f"{step}, {wait}"
        return f"{step}, {wait}; {device(anatomy)} idle {units.share(idle)}"
    if not anatomy.parts:
        return step
    largest_part = max(anatomy.parts, key=lambda part: part.ms)
    busy = f"{device(anatomy)} busy {units.share(1 - idle)}"
    largest = f"{units.share(anatomy.share(largest_part.kind))} {kind(largest_part.kind)}"
    return f"{step}, {largest}" if anatomy.device == "cpu" else f"{step}, {busy}, {largest}"


def verdict(profiled: Profiled) -> str:
    """How much can be gained and what to do first; else what the step consists of."""
    limit = units.share(profiled.fail_over)
    checks = f" ({units.count(profiled.checks, 'check')})" if profiled.checks else ""
    large = [finding for finding in profiled.findings if saved(finding) > profiled.fail_over]
    if not large:
        rest = units.count(len(profiled.findings), "smaller finding")
        smaller = f", {rest}" if profiled.findings else ""
        known = f"; {largest(profiled)}" if profiled.profile.anatomy.parts else ""
        return f"no finding is worth more than {limit} of the step{smaller}{checks}{known}"
    first = max(large, key=saved)
    count = f"{units.count(len(large), 'finding')} worth more than {limit}"
    place = f" at {first.where}" if first.where else ""
    return f"{count}{checks}: cure {first.code}{place}: {after(first, profiled.profile)}"


def largest(profiled: Profiled) -> str:
    """The largest part of the step, and whether its cause is known."""
    anatomy = profiled.profile.anatomy
    part = max(anatomy.parts, key=lambda part: part.ms)
    name = f"its largest part is {kind(part.kind)}, {units.share(anatomy.share(part.kind))}"
    return f"{name}: {EXPLAINED.get(part.kind, NO_OBJECTION)}"


def gain(value: Gain) -> str:
    """For example "1.21x (1.1x to 1.3x)"; above 5x "at most 8.2x"."""
    if value.bounds:
        return f"at most {units.ratio(value.ratio)}"
    if value.low is None or value.high is None or not value.low < value.high:
        return units.ratio(value.ratio)
    high = value.high if value.high <= LARGEST else LARGEST
    end = units.ratio(high) if value.high <= LARGEST else f"more than {units.ratio(high)}"
    return f"{units.ratio(value.ratio)} ({units.ratio(value.low)} to {end})"


def after(finding: Finding, profile: Profile, arrow: str = "->") -> str:
    """The step before and after the cure: "412 -> 180 ms per step, 2.29x (2.0x to 2.7x)"."""
    cured = cured_ms(finding, profile)
    if finding.gain is None or cured is None:
        return "not predicted"
    before, step = units.milliseconds(profile.anatomy.step_ms), units.milliseconds(cured)
    at_best = " at best" if finding.gain.bounds else ""
    return f"{before.removesuffix(' ms')} {arrow} {step} per step{at_best}, {gain(finding.gain)}"


def cured_ms(finding: Finding, profile: Profile) -> float | None:
    """The predicted step in milliseconds, or None without a prediction."""
    ratio = finding.gain.ratio if finding.gain else math.nan
    return amdahl.remaining(profile.anatomy.step_ms, ratio)


def saved(finding: Finding) -> float:
    """The share of the step that its cure is predicted to save, or 0 if not known."""
    return finding.gain.saved if finding.gain else 0.0


def worth_doing(profiled: Profiled) -> bool:
    """Whether a finding is worth more than the limit."""
    return profiled.largest_gain > profiled.fail_over


def reached(profile: Profile) -> Iterator[str]:
    """How close the step comes to the hardware's limits, in short phrases."""
    anatomy = profile.anatomy
    if anatomy.flops and anatomy.step_ms:
        yield flops_per_s(anatomy.flops, anatomy.step_ms)
    if anatomy.mfu is not None:
        yield f"MFU {units.share(anatomy.mfu)} of the measured matmul ceiling"
    if anatomy.cores_busy is not None:
        total = f" of {anatomy.cores}" if anatomy.cores else ""
        yield f"{anatomy.cores_busy:.1f}{total} cores busy"
    if profile.seen is not None and profile.seen.samples and anatomy.step_ms:
        yield units.rate(profile.seen.samples / anatomy.step_ms * 1000)
    measured = [part for part in anatomy.parts if part.ceiling is not None]
    largest = sorted(measured, key=lambda part: -part.ms)[:3]
    if largest:
        shares = (f"{kind(part.kind)} {units.share(part.ceiling)}" for part in largest)
        yield f"of their ceilings: {', '.join(shares)}"


def overlapped(profile: Profile) -> Iterator[str]:
    """Work that adds no time to the step, since something else ran meanwhile."""
    anatomy = profile.anatomy
    if anatomy.hidden_communication_ms:
        yield f"{units.milliseconds(anatomy.hidden_communication_ms)} of communication"
    if anatomy.overlapped_copy_ms:
        yield f"{units.milliseconds(anatomy.overlapped_copy_ms)} of copies"


def flops_per_s(flops: float | None, ms: float) -> str:
    """1.2e12 in 100 ms -> "12 TFLOP/s"."""
    if not flops or ms <= 0:
        return units.UNKNOWN
    value = flops / ms * 1000
    for scale, unit in ((1e12, "TFLOP/s"), (1e9, "GFLOP/s")):
        if value >= 0.995 * scale:
            return units.rate(value / scale, unit)
    return units.rate(value / 1e6, "MFLOP/s")


def bytes_per_s(amount: float | None, ms: float) -> str:
    """2e9 bytes in 1 ms -> "2,000 GB/s"; decimal, as in data sheets."""
    return units.rate(amount / ms / 1e6, "GB/s") if amount and ms > 0 else units.UNKNOWN


def kernel(name: str, width: int) -> str:
    """A kernel's name in at most `width` characters, without "void" and its arguments."""
    short_name = plain.one_line(name).removeprefix("void ")
    if short_name.endswith(")") and not short_name.startswith("("):
        short_name = short_name[: _arguments(short_name)]
    return plain.cut(short_name, width)


def folded(anatomy: Anatomy, at_most: int) -> list[tuple[str, Part]]:
    """The nonzero parts, the largest first; those beyond `at_most` as one."""
    parts = sorted((part for part in anatomy.parts if part.ms > 0), key=lambda part: -part.ms)
    rows = [(kind(part.kind), part) for part in parts]
    if len(rows) <= at_most:
        return rows
    small = parts[at_most - 1 :]
    sum_part = Part(Kind.OTHER, sum(part.ms for part in small))
    return [*rows[: at_most - 1], (f"{len(small)} smaller parts", sum_part)]


def _arguments(name: str) -> int:
    """Where the last argument list begins."""
    depth = 0
    for index in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[index], 0)
        if depth == 0:
            return index or len(name)
    return len(name)


def places(profile: Profile) -> dict[str, Place]:
    """All places of a profile by "file:line", preferring those with their source text."""
    by_location: dict[str, Place] = {}
    lists = (profile.operators, profile.kernels, profile.gaps, profile.syncs, profile.copies)
    known = [entry.where for entries in lists for entry in entries if entry.where is not None]
    if profile.host is not None:
        known += [line.where for line in profile.host.lines]
    for place in known:
        if str(place) not in by_location or (place.source and not by_location[str(place)].source):
            by_location[str(place)] = place
    return by_location
