"""`flatout profile` on a real script: work beside the training, and a heavy training without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import profiled

SCRIPT = "beside_faults.py"
LINES = {"average": ("average", "average_too"), "hook": ("hook",)}


def findings(folder: Path, fault: str) -> list[dict[str, Any]]:
    document = profiled.run(SCRIPT, folder, "--fault", fault)
    return [item for item in document["findings"] if item["code"] == "HOST017"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("average", "averaging the weights with copy.deepcopy"),
        pytest.param("hook", "hooks", marks=pytest.mark.thorough),
    ],
)
def test_the_work_is_named_with_its_line(fault: str, words: str, tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, fault)
    assert words in finding["title"]
    assert finding["where"] in {profiled.line(SCRIPT, name) for name in LINES[fault]}


@pytest.mark.slow
@pytest.mark.thorough
def test_augmentation_and_loss_are_the_training(tmp_path: Path) -> None:
    assert findings(tmp_path, "") == []
