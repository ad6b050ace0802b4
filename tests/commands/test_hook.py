"""`flatout env hook`, and what FLATOUT_LIVE=1 then does to a Python of that environment."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import forked
from flatout.__main__ import outcome
from flatout.in_process import by_variable
from flatout_agent import wire
from flatout_agent.attach import importing
from measuring.programs import PLAIN

NAME = "flatout-live.pth"
LOADED = "import sys; print([name for name in sys.modules if name.startswith('flatout')])"
TRAINS = PLAIN.replace("100_000", "12") + "print(step)\n"
ON = {"FLATOUT_LIVE": "1"}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command writes."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder))
    return folder


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of an environment with the hook."""
    folder = tmp_path_factory.mktemp("environment")
    venv.EnvBuilder(symlinks=os.name != "nt").create(folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    done = run(python, "-m", "flatout", "env", "hook")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"wrote {folder}")
    return python


def run(python: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **paths, **variables}
    return subprocess.run(
        [python, *words], env=environment, capture_output=True, text=True, timeout=240,
        cwd=python.parent,
    )  # fmt: skip


def test_it_is_written_and_deleted(packages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(["env", "hook"]) == 0
    assert capsys.readouterr().err.startswith(f"wrote {packages / NAME}: ")
    assert [file.name for file in packages.iterdir()] == [NAME]
    assert outcome(["env", "hook", "--json"]) == 0, "a second time is no error"
    document = json.loads(capsys.readouterr().out)
    assert (document["installed"], document["file"]) == (True, str(packages / NAME))
    assert outcome(["env", "hook", "--remove"]) == 0
    assert capsys.readouterr().err.startswith(f"deleted {packages / NAME}")
    assert outcome(["env", "hook", "--remove"]) == 0
    assert "nothing was deleted" in capsys.readouterr().err
    assert list(packages.iterdir()) == []


def test_where_it_cannot_be_written_that_is_said(
    packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packages.rmdir()
    assert outcome(["env", "hook"]) == 1
    message, cure = capsys.readouterr().err.splitlines()
    assert message.startswith(f"flatout: {packages / NAME} cannot be written: ")
    assert cure.startswith("  next: use a virtual environment of your own")


@pytest.mark.slow
def test_no_start_of_python_is_affected(hooked: Path) -> None:
    starts = [("", {}), ("", {"FLATOUT_LIVE": ""}), ("", {"FLATOUT_LIVE": "0"})]
    starts += [(option, ON) for option in ("-I", "-S", "-E")]
    starts += [("", {**ON, "PYTHONPATH": ""})]  # flatout is gone
    for option, variables in starts:
        done = run(hooked, *filter(None, [option]), "-c", LOADED, **variables)
        assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", ""), (option, variables)
    done = run(hooked, "-c", LOADED, **ON)
    assert (done.returncode, done.stderr) == (0, "")
    assert "flatout.in_process.by_variable" in done.stdout
    assert "flatout_agent.wire" not in done.stdout, "light"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("import torch; torch.nn.Linear(2, 2)(torch.ones(1, 2))", ""),
        ("import sys; sys.path.insert(0, '.'); import torch; print(torch.answer)", "42\n"),
    ],
    ids=["it never trains", "what is called torch is not torch"],
)
def test_a_program_without_training_is_as_ever(
    hooked: Path, tmp_path: Path, text: str, printed: str
) -> None:
    if printed:
        (tmp_path / "torch.py").write_text("answer = 42\n")
    done = run(hooked, "-c", f"import os; os.chdir({str(tmp_path)!r}); {text}", **ON)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
    assert not (tmp_path / ".flatout").exists()


@pytest.mark.slow
def test_a_program_that_trains_is_tuned(hooked: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import os; os.chdir({str(tmp_path)!r})\n{TRAINS}")
    alone = forked.bare(["train.py"], tmp_path, tmp_path)
    done = run(hooked, str(tmp_path / "train.py"), **ON)
    assert (done.returncode, done.stdout) == (0, alone.stdout), done.stderr
    assert "flatout: 11 steps" in done.stderr, "from the first call after a backward pass on"
    assert "inside flatout" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["flatout.toml", "agent"])
def test_an_error_of_ours_costs_a_speed_up_alone(tmp_path: Path, broken: str) -> None:
    text = "import flatout.in_process.by_variable as by_variable\nby_variable.wait()\n" + TRAINS
    if broken == "agent":
        text = f"import flatout.in_process.live as live\nlive.RunHere = None\n{text}"
    else:
        (tmp_path / "flatout.toml").write_text("version = 99\n")
    (tmp_path / "train.py").write_text(text)
    done = forked.with_variables(["train.py"], tmp_path, tmp_path, {})
    assert done.returncode == 0, done.stderr
    assert float(done.stdout)
    assert "flatout: warning: FLATOUT_LIVE=1 has no effect: " in done.stderr


@pytest.mark.slow
def test_it_begins_once_and_never_within_a_backward_pass(tmp_path: Path) -> None:
    """Checkpointing calls parts of the model, and has backward passes, within a backward pass."""
    text = """
import torch
from torch.utils.checkpoint import checkpoint
from flatout_agent import training_awaited

began = []
training_awaited.before_training(lambda: began.append(torch._C._current_graph_task_id()))
plain = torch.autograd.backward, torch.nn.Module.__call__
layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

def step(inputs):
    for layer in layers:
        inputs = checkpoint(layer, inputs, use_reentrant=True)
    inputs.sum().backward()

step(torch.ones(2, 4, requires_grad=True))
print(began)
step(torch.ones(2, 4, requires_grad=True))
step(torch.ones(2, 4, requires_grad=True))
print(began, torch.nn.Module.__call__ is plain[1], torch.autograd.backward is not plain[0])
"""
    (tmp_path / "train.py").write_text(text)
    done = forked.with_variables(["train.py"], tmp_path, tmp_path, {})
    assert (done.returncode, done.stdout) == (0, "[]\n[-1] True True\n"), done.stderr


@pytest.mark.slow
def test_without_models_it_begins_before_the_second_backward_pass(tmp_path: Path) -> None:
    text = """
import torch
from flatout_agent import training_awaited
began = []
training_awaited.before_training(lambda: began.append(1))
weight = torch.ones(2, requires_grad=True)
for _ in range(3):
    weight.sum().backward()
    print(len(began), weight.grad.tolist())
"""
    (tmp_path / "train.py").write_text(text)
    done = forked.with_variables(["train.py"], tmp_path, tmp_path, {})
    assert done.stdout == "0 [1.0, 1.0]\n1 [2.0, 2.0]\n1 [3.0, 3.0]\n", done.stderr


def test_a_program_that_flatout_has_started_is_known() -> None:
    assert by_variable.STARTED_BY_FLATOUT == wire.ORDERS_ENV


def test_two_that_wait_for_one_module_are_both_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the variable is set and the program calls `live` before it imports torch."""
    called: list[str] = []
    monkeypatch.delitem(sys.modules, "this", raising=False)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in ("first", "second"):
        importing.after_import({"this": lambda module, name=name: called.append(name)})
    with contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module("this")
    assert sorted(called) == ["first", "second"]
    assert not [finder for finder in sys.meta_path if type(finder).__module__ == importing.__name__]
