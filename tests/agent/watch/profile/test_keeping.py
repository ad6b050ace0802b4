"""The line that keeps the losses, and the line that switches on what costs, in many styles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flatout_agent.watch.profile import keeping, switches
from flatout_agent.watch.profile.keeping import CallSite, keeping_place
from flatout_agent.watch.profile.switches import (
    anomaly_line,
    checkpointing_line,
    double_line,
    parsed,
    single_loader_line,
    tracing_line,
)

STYLES = {
    "a meter": """
class Meter:
    def update(self, value, n=1):
        self.last = value
        self.sum += value * n  # KEEP
def step(x):
    loss = f(x)
    loss.backward()  # BACKWARD
    return loss
def fit():
    for x in data:
        loss = step(x)  # CALL
        meter.update(loss, len(x))
""",
    "an attribute": """
class Trainer:
    def step(self, x):
        self.loss = f(x)
        self.loss.backward()  # BACKWARD
        self.losses.append(self.loss)  # KEEP
""",
    "an entry of a dictionary": """
def step(x):
    out = {"loss": f(x), "n": len(x)}
    out["loss"].backward()  # BACKWARD
    return out
for x in data:
    out = step(x)  # CALL
    stats["loss"] = stats["loss"] + out["loss"]  # KEEP
""",
    "a running sum": """
total = 0
for x in data:
    loss = f(x) / 4
    loss.backward()  # BACKWARD
    total = total + loss  # KEEP
""",
    "a scaler": """
for x in data:
    loss = f(x)
    scaler.scale(loss).backward()  # BACKWARD
    epoch_loss += loss  # KEEP
""",
    "a function's result": """
def train_step(x):
    loss = f(x)
    loss.backward()  # BACKWARD
    return loss, 3
for x in data:
    l, accuracy = train_step(x)  # CALL
    row = {"step": 1, "loss": l}
    rows.append(row)  # KEEP
""",
    "directly": """
def train_step(x):
    loss = f(x)
    loss.backward()  # BACKWARD
    return loss
for x in data:
    losses.append(train_step(x))  # CALL KEEP
""",
    "metrics by name": """
def log(metrics):
    for name, value in metrics.items():
        totals[name] += value  # KEEP
for x in data:
    loss = f(x)
    accelerator.backward(loss)  # BACKWARD
    log({"loss": loss, "lr": 0.1})
""",
    "a list that grows": """
for x in data:
    loss = f(x)
    loss.backward()  # BACKWARD
    losses = losses + [loss.cpu()]  # KEEP
""",
    "a backward function": """
def go_back(loss, optimizer):
    loss.backward()  # BACKWARD
for x in data:
    value = f(x)
    go_back(value, optimizer)  # CALL
    history[step] = value  # KEEP
""",
}
SOUND = {
    "numbers": """
for x in data:
    loss = f(x)
    loss.backward()  # BACKWARD
    losses.append(loss.item())
    total += loss.detach()
    last["loss"] = loss
    loss = loss / 2
""",
}


def line(source: str, mark: str) -> int:
    lines = source.splitlines()
    return next(number for number, text in enumerate(lines, 1) if mark in text.partition("#")[2])


def program(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's one file."""
    path = folder / "train.py"
    path.write_text(source)
    for module in (switches, keeping):
        monkeypatch.setattr(module, "user_files", lambda: [(str(path), str(path))])
    parsed.cache_clear()
    return path


def stack(path: Path, source: str) -> list[CallSite]:
    sites = [CallSite(str(path), line(source, "BACKWARD"), function(source, "BACKWARD"))]
    if "# CALL" in source:
        sites.append(CallSite(str(path), line(source, "CALL"), function(source, "CALL")))
    return sites


def function(source: str, mark: str) -> str:
    lines = source.splitlines()[: line(source, mark)]
    names = [text.split("def ")[1].split("(")[0] for text in lines if "def " in text]
    inside = lines[-1].startswith("    ") and names and "for x in data:" not in lines
    return names[-1] if inside or (names and mark == "BACKWARD") else "<module>"


@pytest.mark.parametrize("style", STYLES)
def test_the_line_that_keeps(style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = STYLES[style]
    path = program(source, tmp_path, monkeypatch)
    assert keeping_place(stack(path, source)) == (str(path), line(source, "KEEP"))


@pytest.mark.parametrize("style", SOUND)
def test_what_keeps_nothing(style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOUND[style]
    assert keeping_place(stack(program(source, tmp_path, monkeypatch), source)) is None


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
        (single_loader_line, "x = 1\nloader = DataLoader(data, shuffle=True)\n", 2),
        (
            single_loader_line,
            "loader = data.DataLoader(rows, 1)\nvalid = data.DataLoader(rows, 64)\n",
            1,
        ),
        (single_loader_line, "loader = DataLoader(rows, batch_size=None)\n", 1),
        (single_loader_line, "a = DataLoader(rows)\nb = DataLoader(rows)\n", None),
        (
            single_loader_line,
            "a = DataLoader(rows, batch_sampler=sampler)\nb = DataLoader(rows, **words)\n",
            None,
        ),
        (single_loader_line, "loader = DataLoader(rows, batch_size=size)\n", None),
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
