"""JSON of `flatout export`, `flatout.export/1`: a field once published keeps its meaning."""

from __future__ import annotations

import dataclasses
from typing import Any

from flatout.nouns.exported import ExportCandidate, ExportResult
from flatout.reporting.document import as_json

EXPORT = "flatout.export/1"


def export_document(result: ExportResult) -> dict[str, Any]:
    """What `flatout export --json` prints; values that were not measured are null."""
    document = {
        "schema": EXPORT,
        "model": result.model,
        "parameters": result.parameters,
        "source": result.source,
        "weights": result.weights,
        "metric": result.metric,
        "inputs": [dataclasses.asdict(item) for item in result.inputs],
        "outputs": [dataclasses.asdict(item) for item in result.outputs],
        "batch_sizes": list(result.batch_sizes),
        "goal": result.goal.value,
        "chosen": result.chosen,
        "why": result.why,
        "artefact": str(result.artefact) if result.artefact is not None else None,
        "candidates": [_candidate(item) for item in result.candidates],
        "notes": list(result.notes),
        "machine": result.machine,
        "run_folder": str(result.run_folder),
        "wall_s": result.wall_s,
    }
    json_document: dict[str, Any] = as_json(document)
    return json_document


def _candidate(item: ExportCandidate) -> dict[str, Any]:
    best = item.best_batch
    return {
        **dataclasses.asdict(item),
        "precision": item.precision.value,
        "state": item.state.value,
        "best_batch": dataclasses.asdict(best) if best is not None else None,
    }
