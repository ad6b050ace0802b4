"""The line that switches on what costs, in many styles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flatout_agent.watch.profile import switches
from flatout_agent.watch.profile.switches import (
    anomaly_line,
    checkpointing_line,
    double_line,
    parsed,
    tracing_line,
)


def program(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's one file."""
    path = folder / "train.py"
    path.write_text(source)
    monkeypatch.setattr(switches, "user_files", lambda: [(str(path), str(path))])
    parsed.cache_clear()
    return path


@pytest.mark.parametrize(
    ("find", "source", "number"),
    [
        (anomaly_line, "x = 1\ntorch.autograd.set_detect_anomaly(True)\n", 2),
        (anomaly_line, "with torch.autograd.detect_anomaly():\n    train()\n", 1),
        (
            anomaly_line,
            "torch.autograd.set_detect_anomaly(False)\nset_detect_anomaly(mode=args.debug)\n",
            2,
        ),
        (
            anomaly_line,
            "trainer = Trainer(max_epochs=3,\n                  detect_anomaly=True)\n",
            1,
        ),
        (anomaly_line, "torch.autograd.set_detect_anomaly(False)\n", None),
        (
            checkpointing_line,
            "model = BertModel(config)\nmodel.gradient_checkpointing_enable()\n",
            2,
        ),
        (
            checkpointing_line,
            "args = TrainingArguments('out',\n    gradient_checkpointing=True)\n",
            1,
        ),
        (
            checkpointing_line,
            "args = TrainingArguments('out', gradient_checkpointing=False)\n",
            None,
        ),
        (tracing_line, "import tracemalloc\ntracemalloc.start(25)\n", 2),
        (tracing_line, "server.start()\nsys.settrace(None)\nsys.settrace(follow)\n", 3),
        (tracing_line, "tracemalloc.stop()\nsys.settrace(None)\n", None),
    ],
)
def test_the_line_that_switches_on_what_costs(
    find: Callable[[], str | None],
    source: str,
    number: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = program(source, tmp_path, monkeypatch)
    place = find()
    assert place is None if number is None else place == f"{path}:{number}"


@pytest.mark.parametrize(
    ("source", "default", "number"),
    [
        ("x = x.double()\nmodel = Net().double()\n", False, 2),
        ("self.model.to(dtype=torch.float64)\n", False, 1),
        ("model.double()\nteacher_net.double()\n", False, None),
        ("y = scale(x).to(x.dtype)\nmodel = Net().to(inputs.dtype)\n", False, 2),
        ("model = model.to(device)\nx = x.to(other.dtype)\n", False, None),
        ("Net().double()\nmodel.to(x.dtype)\n", False, 1),
        ("torch.set_default_dtype(torch.float32)\ntorch.set_default_dtype(torch.float64)", True, 2),
    ],
)
def test_the_line_that_makes_a_model_float64(
    source: str,
    default: bool,
    number: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = program(source, tmp_path, monkeypatch)
    place = double_line(default)
    assert place is None if number is None else place == f"{path}:{number}"
