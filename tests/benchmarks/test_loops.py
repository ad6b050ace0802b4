"""The loops of benchmarks/library.py do the same work: else their ratios say nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow

LOOPS = ("naive", "flatout_loop", "expert", "accelerate_loop", "fabric_loop")
SAME_BATCH = """
import dataclasses, importlib, itertools, json, sys
from loops import jobs
import data
job = jobs.make("gpt", quick=True)
length = job.dataset.length
# As many pieces as a batch holds: each batch is the same.
same = data.Windows(job.dataset.tokens[: job.batch * length + 1], length, more=1)
job = dataclasses.replace(job, dataset=same, order=list(range(job.batch)))
found = {}
for loop in sys.argv[1:]:
    file, _, rung = loop.partition(":")
    module = importlib.import_module(f"loops.{file}")
    steps = module.steps(job, rung) if rung else module.steps(job)
    found[loop] = [float(loss) for loss in itertools.islice(steps, 12)]
print(json.dumps(found))
"""


@pytest.fixture
def benchmarks(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    return root / "benchmarks"


def uncompiled() -> dict[str, str]:
    return {**os.environ, "TORCHDYNAMO_DISABLE": "1"}


@pytest.mark.thorough
def test_all_loops_learn_the_same_from_the_same_batches(benchmarks: Path) -> None:
    rungs = ["ladder:loader", "ladder:step", "ladder:precision"]
    done = subprocess.run(
        [sys.executable, "-c", SAME_BATCH, *LOOPS, *rungs],
        cwd=benchmarks,
        env=uncompiled(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    naive = found.pop("naive")
    assert naive[-1] < 0.9 * naive[0]
    for loop, losses in found.items():
        exact = loop in ("ladder:loader", "ladder:step")
        assert losses == pytest.approx(naive, rel=1e-4 if exact else 5e-3), loop


@pytest.fixture
def ladder(benchmarks: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("library_steps", benchmarks / "library_steps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def document() -> dict[str, Any]:
    def rung(step_ms: float, gain: float, whole: float) -> dict[str, Any]:
        return {"step_ms": step_ms, "gain": {"ratio": gain}, "in_all": {"ratio": whole}}

    gpt = {"naive": rung(200, 1, 1), "loader": rung(100, 2, 2)}
    machine = {"cpu": "A CPU", "cores": 2, "torch": "2.13"}
    return {"figures": {"gpt": {"rungs": gpt}}, "machine": machine, "date": "2030-01-02T03:04:05"}


def test_the_table_has_what_was_measured(ladder: ModuleType) -> None:
    lines = ladder.table(document()).splitlines()
    assert "| the naive loop | 200 ms |  | 1.00x |" in lines
    assert "| 1. flatout's loader | 100 ms | 2.00x | 2.00x |" in lines
    assert "A CPU, 2 cores, torch 2.13, 2030-01-02" in lines[-1]
    page = f"before\n{ladder.BEGIN}\nold\n{ladder.END}\nafter\n"
    new = ladder.with_table(page, "new")
    assert new == f"before\n{ladder.BEGIN}\n\nnew\n\n{ladder.END}\nafter\n"
    assert ladder.with_table(new, "new") == new


def test_the_page_has_the_committed_results(ladder: ModuleType, benchmarks: Path) -> None:
    page = ladder.PAGE.read_text(encoding="utf-8")
    results = benchmarks / "results/library_steps.json"
    if not results.exists():
        assert "Not measured yet" in page
        return
    found = ladder.table(json.loads(results.read_text(encoding="utf-8")))
    assert ladder.with_table(page, found) == page
