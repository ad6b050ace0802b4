"""From a recording to a Profile."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flatout.nouns.anatomy import Kind
from flatout.nouns.product import ProductCalls
from flatout.nouns.profile import Profile, RankSeen
from flatout.profiling.trace import collectives, device, drawing, flops, operators, tables
from flatout.profiling.trace.anatomy import anatomy, factors
from flatout.profiling.trace.attribution import Attribution, look
from flatout.profiling.trace.groups import grouped
from flatout.profiling.trace.recording import TraceRecording

MOST_PRODUCTS = 32
"""Distinct products, the costliest first."""


def analyse(
    recording: TraceRecording,
    detail: TraceRecording | None = None,
    *,
    step_ms: float | None = None,
    roots: Sequence[Path] = (),
) -> Profile:
    """Where the time of one step went, with tables of what was recorded.

    `detail`: the trace with stacks and shapes; its lines and shapes are transferred to
    the same operators of the first. `step_ms`: duration of a step without recording, with which
    the overhead of recording is subtracted. `roots`: folders of the user's own code, first the one
    in which the program was started; without them, lines are those of functions.
    """
    attribution = look(recording, detail, roots)
    step_anatomy = anatomy(attribution, step_ms)
    factor = factors(attribution, step_anatomy)
    name, capability = _device(attribution)
    return Profile(
        command=(),
        anatomy=step_anatomy,
        operators=tables.operator_table(attribution, factor),
        kernels=tables.kernel_table(attribution),
        gaps=tables.gap_table(attribution, factor),
        syncs=tables.sync_table(attribution),
        copies=tables.copy_table(attribution),
        collectives=collectives.table(attribution),
        timeline=drawing.timeline(attribution),
        memory=drawing.memory(attribution),
        products=products(attribution, factor),
        device_name=name,
        capability=capability,
        trace=recording.path,
        trace_steps=bool(attribution.window.marks),
    )


def ranks(recordings: Sequence[TraceRecording]) -> tuple[RankSeen, ...]:
    """A summary of each rank; empty for a single one. Overlaps count for both."""
    if len(recordings) < 2:
        return ()
    ordered = sorted(recordings, key=lambda recording: recording.rank)
    summaries = []
    for recording in ordered:
        step = anatomy(look(recording))
        summaries.append(
            RankSeen(
                rank=recording.rank,
                step_ms=step.step_ms,
                busy_ms=step.busy_ms,
                communication_ms=step.part(Kind.COMMUNICATION) + step.hidden_communication_ms,
                compute_ms=step.busy_ms - step.part(Kind.COPY, Kind.COMMUNICATION, Kind.PYTHON),
            )
        )
    return tuple(summaries)


def _device(attribution: Attribution) -> tuple[str | None, tuple[int, int] | None]:
    """Name and compute capability of the device that trained, from the trace."""
    properties = attribution.recording.metadata.get("deviceProperties")
    if not attribution.on_device or not isinstance(properties, list):
        return None, None
    number = int(device.numbers(attribution.recording)[attribution.work.rows[0]])
    device_properties: dict[str, Any] = next(
        (entry for entry in properties if isinstance(entry, dict) and entry.get("id") == number), {}
    )
    major, minor = device_properties.get("computeMajor"), device_properties.get("computeMinor")
    has_capability = isinstance(major, int) and isinstance(minor, int)
    name = device_properties.get("name")
    return name if isinstance(name, str) else None, (major, minor) if has_capability else None  # type: ignore[return-value]


def products(attribution: Attribution, factor: Mapping[Kind, float]) -> tuple[ProductCalls, ...]:
    """Products on the CPU; empty if an accelerator multiplies or no shapes were recorded."""
    if attribution.on_device:
        return ()
    recording, detail = attribution.recording, attribution.source.recording
    multiplies = recording.named(lambda name: operators.of_operator(name) is Kind.MATMUL)
    twin = attribution.source.twin[attribution.rows]
    chosen = multiplies[recording.events.name[attribution.rows]] & (twin >= 0)
    rows, twin = attribution.rows[chosen], twin[chosen]
    events, backward = detail.events, attribution.source.backward[rows].astype(np.int64)
    inputs = (events.shapes[twin], events.dtypes[twin], events.concrete[twin])
    groups = grouped(recording.events.name[rows], *inputs, backward)
    ns, calls = groups.total(attribution.host.own[rows]), groups.count()
    table = []
    for number in np.argsort(-ns, kind="stable")[:MOST_PRODUCTS].tolist():
        name, shapes, dtypes, concrete, is_backward = groups.keys[:, number].tolist()
        if min(shapes, dtypes, concrete) < 0:
            continue
        table.append(
            ProductCalls(
                name=recording.names[name],
                shapes=tuple(tuple(shape) for shape in flops.inputs(detail.shapes[shapes])),
                dtypes=tuple(detail.dtypes[dtypes].split(", ")),
                values=tuple(str(value) for value in json.loads(detail.concrete[concrete])),
                calls=attribution.mean(calls[number]),
                ms=attribution.per_step(ns[number]) * factor.get(Kind.MATMUL, 1.0),
                backward=bool(is_backward),
            )
        )
    return tuple(table)
