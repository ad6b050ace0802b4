"""The matrix products and convolutions of a recording, each with its inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from flatout.nouns.anatomy import Kind
from flatout.nouns.product import ProductCalls
from flatout.profiling.trace import flops, operators
from flatout.profiling.trace.attribution import Attribution
from flatout.profiling.trace.groups import grouped

MOST = 32
"""Distinct products, the costliest first."""


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
    for number in np.argsort(-ns, kind="stable")[:MOST].tolist():
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
