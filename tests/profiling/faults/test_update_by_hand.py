"""Real runs: a program that updates its weights itself is profiled, run and told how to do it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import forked
import profiled

pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def test_the_update_is_named_with_its_line_and_cure(tmp_path: Path) -> None:
    script = "update_by_hand.py"
    document = profiled.run(script, tmp_path)
    (finding,) = (each for each in document["findings"] if each["code"] == "HOST006")
    assert finding["where"] == profiled.line(script, "update")
    assert "torch.optim.Adam" in str(finding["cure"])
    assert "48 weights" in finding["evidence"]
    assert finding["gain"]["predicted"] > 1.2
    parts = {part["part"]: part["share"] for part in document["anatomy"]}
    assert "optimizer" not in parts
    # The update is told once: neither as a loop of operators, nor as what compiling would cure.
    lines = {each["code"]: str(each["where"]) for each in document["findings"]}
    assert "HOST011" not in lines
    assert "HOST009" not in lines


def test_it_runs_and_its_steps_are_counted(tmp_path: Path) -> None:
    script = Path(__file__).parent / "update_by_hand.py"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "flatout", "run", "--no-plan"),
            *("--python", forked.python(), str(script)),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (steps,) = re.findall(r"(\d+) steps", done.stderr)
    assert 395 <= int(steps) < 400
