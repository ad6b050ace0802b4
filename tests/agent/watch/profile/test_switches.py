"""The line that switches on what costs, in many styles."""

from __future__ import annotations

import functools
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

model_line = functools.partial(double_line, False)
default_line = functools.partial(double_line, True)
CASES: dict[Callable[[], str | None], dict[str, int | None]] = {
    anomaly_line: {
        "x = 1\ntorch.autograd.set_detect_anomaly(True)\n": 2,
        "with torch.autograd.detect_anomaly():\n    train()\n": 1,
        "torch.autograd.set_detect_anomaly(False)\nset_detect_anomaly(mode=args.debug)\n": 2,
        "trainer = Trainer(max_epochs=3,\n                  detect_anomaly=True)\n": 1,
        "torch.autograd.set_detect_anomaly(False)\n": None,
    },
    checkpointing_line: {
        "model = BertModel(config)\nmodel.gradient_checkpointing_enable()\n": 2,
        "args = TrainingArguments('out',\n    gradient_checkpointing=True)\n": 1,
        "args = TrainingArguments('out', gradient_checkpointing=False)\n": None,
    },
    tracing_line: {
        "import tracemalloc\ntracemalloc.start(25)\n": 2,
        "server.start()\nsys.settrace(None)\nsys.settrace(follow)\n": 3,
        "tracemalloc.stop()\nsys.settrace(None)\n": None,
    },
    model_line: {
        "x = x.double()\nmodel = Net().double()\n": 2,
        "self.model.to(dtype=torch.float64)\n": 1,
        "model.double()\nteacher_net.double()\n": None,
        "y = scale(x).to(x.dtype)\nmodel = Net().to(inputs.dtype)\n": 2,
        "model = model.to(device)\nx = x.to(other.dtype)\n": None,
        "Net().double()\nmodel.to(x.dtype)\n": 1,
    },
    default_line: {
        "torch.set_default_dtype(torch.float32)\ntorch.set_default_dtype(torch.float64)": 2,
    },
}


@pytest.mark.parametrize(
    ("find", "source", "number"),
    [(find, source, number) for find, cases in CASES.items() for source, number in cases.items()],
)
def test_the_line_that_switches_on_what_costs(
    find: Callable[[], str | None],
    source: str,
    number: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "train.py"  # the user's one file
    path.write_text(source)
    monkeypatch.setattr(switches, "user_files", lambda: [(str(path), str(path))])
    parsed.cache_clear()
    assert find() == (None if number is None else f"{path}:{number}")
