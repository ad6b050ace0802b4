"""Backends whose packages are optional: quantised builds that are proven."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import exported
from flatout.exporting import candidates, export
from flatout.nouns.exported import ExportCandidate, ExportSettings, Goal
from flatout_programs import backends

pytestmark = pytest.mark.slow


def trained() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]], list[torch.Tensor | None]]:
    """A classifier that has learnt its four classes, with 480 rows and their labels."""
    torch.manual_seed(0)
    marks = torch.randn(4, 3, 8, 8)
    labels = torch.arange(480) % 4
    images = marks[labels] + 0.7 * torch.randn(480, 3, 8, 8)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 4)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    calls = [(part.clone(),) for part in images.split(60)]
    return model.eval(), calls, [part.clone() for part in labels.split(60)]


def row_of(folder: Path, name: str) -> ExportCandidate:
    """The row of one build; skipped where its packages are absent."""
    settings = ExportSettings(
        sys.executable,
        folder / "artefact",
        goal=Goal.SIZE,
        allow=("int8",),
        only=("eager", name),
        measure_s=0.3,
        threads=1,
    )
    plan = next(plan for plan in candidates.plans(settings) if plan.id == name)
    backend = backends.load(plan.backend.id).BACKEND
    for package in (*backend.building, *backend.serving, *plan.variant.packages):
        pytest.importorskip(package.module)
    model, calls, labels = trained()
    captured = exported.capture(folder / "capture", model, calls, labels)
    result = export.run(captured, settings)
    return next(row for row in result.candidates if row.id == name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["openvino-int8", "onnxruntime-int8"])
def test_a_quantised_build_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    row = row_of(tmp_path, name)
    assert row.guard is not None, row.reason
    assert row.guard.passed, row.reason
    assert (row.guard.metric, row.guard.samples) == ("accuracy", 360)
    assert row.guard.lower is not None
    assert row.guard.lower >= 0.99
    assert row.guard.relative_error is not None
    assert 1e-4 < row.guard.relative_error < 0.1  # it is quantised, and not wrong
    assert row.latency is not None
