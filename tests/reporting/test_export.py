"""An export as screen and JSON."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from flatout.nouns.exported import (
    BatchPoint,
    BuildPrecision,
    BuildState,
    ExportCandidate,
    ExportGuard,
    ExportResult,
    Goal,
    Latency,
    TensorSpec,
)
from flatout.reporting.export import export_document, show_export

PASSED = ExportGuard(True, "", 128, 3e-7, 1e-5, 1.0, batch_sizes=(1, 32))


def build(name: str, state: BuildState, ms: float | None = None, **more: object) -> ExportCandidate:
    row = ExportCandidate(name, name, name.title(), BuildPrecision.EXACT, state)
    if ms is not None:
        row = replace(
            row,
            guard=PASSED,
            latency=Latency(1, 1500, ms, 2 * ms, 0.98 * ms, 1.02 * ms),
            batches=tuple(BatchPoint(n, ms * n**0.5, 1e3 * n**0.5 / ms) for n in (1, 2, 4)),
            speedup=10 / ms,
            speedup_interval=(9.8 / ms, 10.2 / ms),
            load_s=0.4,
            first_call_ms=12.0,
            peak_bytes=90 << 20,
            size_bytes=40 << 20,
            build_s=5.0,
        )
    return replace(row, **more)  # type: ignore[arg-type]


RESULT = ExportResult(
    model="Net<script>",
    parameters=1234,
    source="evaluation",
    weights="trained",
    inputs=(TensorSpec("x", "float32", (None, 3, 8, 8)),),
    outputs=(TensorSpec("logits", "float32", (None, 10)),),
    batch_sizes=(32,),
    goal=Goal.LATENCY,
    candidates=(
        build("onnxruntime", BuildState.CHOSEN, 4.0),
        build("eager", BuildState.VERIFIED, 10.0, reason="2.50x the time of Onnxruntime"),
        build(
            "openvino",
            BuildState.REFUSED,
            reason="with batch 1: <b>logits</b> off by 2.5e-01",
            guard=replace(PASSED, passed=False, relative_error=0.25),
        ),
        build(
            "tensorrt",
            BuildState.ABSENT,
            reason="tensorrt not installed",
            install="pip install x",
        ),
    ),
    chosen="onnxruntime",
    why="fastest with batch 1",
    artefact=Path("exported"),
    metric={"name": "accuracy", "value": 0.9, "how": "printed"},
    notes=("results were compared on 12 samples; 64 would be better",),
    machine={"cores": 2, "torch": "2.13.0"},
    run_folder=Path(".flatout/runs/x-export"),
    wall_s=61.0,
)


def printed(result: ExportResult, width: int = 120) -> str:
    out = io.StringIO()
    show_export(result, Console(file=out, width=width))
    return out.getvalue()


def test_screen() -> None:
    text = printed(RESULT)
    assert re.search(r"\* Onnxruntime +4\.00 ms +8\.00 ms +2\.50x", text), text
    assert "Openvino: with batch 1: <b>logits</b> off by 2.5e-01" in text
    assert "pip install x" in text
    assert "64 would be better" in text
    assert "in x: any x 3 x 8 x 8 float32" in text
    assert "accuracy 0.9" in text
    assert "fastest with batch 1" in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_document() -> None:
    found = json.loads(json.dumps(export_document(RESULT)))
    assert found["schema"] == "flatout.export/1"
    assert (found["chosen"], found["artefact"]) == ("onnxruntime", "exported")
    first, second, refused, absent = found["candidates"]
    assert first["state"] == "chosen"
    assert first["best_batch"]["batch"] == 4
    assert first["latency"]["p50_ms"] == 4.0
    assert second["speedup"] == 1.0
    assert refused["guard"]["passed"] is False
    assert absent["latency"] is None
    assert absent["install"] == "pip install x"
