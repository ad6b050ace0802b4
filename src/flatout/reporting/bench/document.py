"""JSON of `flatout bench`: `flatout.bench/1`. A field once published keeps its name and meaning."""

from __future__ import annotations

from typing import Any

from flatout.nouns.ceiling import Benched, Ceiling
from flatout.reporting.document import as_json

BENCH = "flatout.bench/1"


def bench_document(benched: Benched) -> dict[str, Any]:
    """What `flatout bench --json` prints; values that were not measured are null."""
    document = {
        "schema": BENCH,
        "ceilings": [_ceiling(ceiling) for ceiling in benched.ceilings],
        "findings": benched.findings,
        "expected": benched.expected,
        "passed": benched.passed,
        "machine": benched.machine,
        "torch": benched.torch,
        "devices": benched.devices,
        "quick": benched.quick,
        "date": benched.date,
        "cached": benched.cached,
        "interrupted": benched.interrupted,
        "busy": benched.busy,
        "wall_s": benched.wall_s,
    }
    json_document: dict[str, Any] = as_json(document)
    return json_document


def share(ceiling: Ceiling) -> float | None:
    """The share of the data sheet's figure, or None if not measured or not on the sheet."""
    if ceiling.value is None or not ceiling.datasheet:
        return None
    return ceiling.value / ceiling.datasheet


def _ceiling(ceiling: Ceiling) -> dict[str, Any]:
    return {
        "id": ceiling.id,
        "title": ceiling.title,
        "device": ceiling.device,
        "value": ceiling.value,
        "unit": ceiling.unit,
        "datasheet": ceiling.datasheet,
        "share": share(ceiling),
        "best": ceiling.best,
        "curve": ceiling.curve,
        "note": ceiling.note,
    }
