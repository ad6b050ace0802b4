"""A benchmark's result file says what was measured, where and when."""

from __future__ import annotations

import importlib.util
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest

import flatout


@pytest.fixture
def record(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("record", root / "benchmarks/record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_record(record: ModuleType, tmp_path: Path) -> None:
    path = record.write("speed", {"ratio": 1.5}, tmp_path / "results")
    found = json.loads(path.read_text(encoding="utf-8"))
    assert path == tmp_path / "results" / "speed.json"
    assert found["figures"] == {"ratio": 1.5}
    assert found["flatout"] == flatout.__version__
    assert found["machine"]["memory_bytes"] > 0
    assert found["machine"]["torch"] is not None
    age = datetime.now(UTC) - datetime.fromisoformat(found["date"])
    assert timedelta(0) <= age + timedelta(seconds=1) < timedelta(minutes=1)


def test_a_result_that_is_no_number_is_refused(record: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        record.write("speed", {"ratio": float("nan")}, tmp_path)
    assert list(tmp_path.iterdir()) == []
