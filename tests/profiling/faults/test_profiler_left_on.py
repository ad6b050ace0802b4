"""A real run: the script's own profiler is the finding, and the rest is recorded without it."""

from __future__ import annotations

from pathlib import Path

import pytest

import profiled

pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def test_a_profiler_that_is_left_on_is_named_with_its_line(tmp_path: Path) -> None:
    script = "profiler_left_on.py"
    document = profiled.run(script, tmp_path)
    (finding,) = (each for each in document["findings"] if each["code"] == "LOOP002")
    assert finding["where"] == profiled.line(script, "profiler")
    assert "schedule" in str(finding["cure"])
    assert "with it and" in finding["evidence"]
    assert {part["part"] for part in document["anatomy"]} >= {"matmul", "optimizer"}
    assert any("second run" in note for note in document["notes"])
    # The program's own run is as ever: its profiler saw each of its calls, and no other run wrote.
    assert (tmp_path / "operators.txt").read_text() == f"{60 * 8}\n"
