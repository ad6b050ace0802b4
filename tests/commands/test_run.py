"""What `flatout run` says and decides; the program itself: running/one/test_foreground."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import forked
from commands import called
from running import stand_in
from running.stand_in import TRAINED, Flatout

PLAN = """
version = 1
[boosts.channels-last]
[boosts.loader-workers]
[boosts.loader-workers.params]
workers = 2
"""


@pytest.fixture
def flatout(tmp_path: Path) -> Flatout:
    folder = tmp_path / "work"
    folder.mkdir()
    return Flatout(folder, stand_in.inject(tmp_path))


def lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return done.stderr.decode().splitlines()


def boosts_ordered(flatout: Flatout) -> list[str]:
    orders = json.loads((flatout.runs()[-1] / "orders.json").read_text())
    assert orders["trial"] is None
    return [boost["id"] for boost in orders["boosts"]]


def test_the_run_ends_with_one_line(flatout: Flatout) -> None:
    flatout.script(TRAINED)
    done = flatout.run("run", "--no-plan", "train.py")
    (line,) = lines(done)
    assert line.startswith("flatout: 40 steps")
    assert "200" in line  # samples/s
    assert "25" in line  # % waiting
    assert done.stdout == b""


@pytest.mark.slow
def test_without_a_plan_it_says_how_to_make_one(flatout: Flatout) -> None:
    flatout.script(TRAINED)
    first, *_ = lines(flatout.run("run", "train.py", "--lr", "0.1"))
    assert "no flatout.toml here" in first
    assert first.endswith("flatout run --live train.py --lr 0.1")
    assert boosts_ordered(flatout) == []


@pytest.mark.slow
def test_the_plan_here_is_applied(flatout: Flatout) -> None:
    flatout.script(
        TRAINED + "sys.flatout_record(kind='boost', id='channels-last', state='engaged')"
    )
    (flatout.folder / "flatout.toml").write_text(PLAN)
    done = flatout.run("run", "train.py")
    assert boosts_ordered(flatout) == ["channels-last", "loader-workers"]
    (line,) = lines(done)
    assert "engaged: channels-last" in line
    assert "loader-workers (the agent did not get to it)" in line


@pytest.mark.slow
def test_another_plan_or_none(flatout: Flatout) -> None:
    flatout.script(TRAINED)
    (flatout.folder / "flatout.toml").write_text(PLAN)
    (flatout.folder / "other.toml").write_text("version = 1\n[boosts.channels-last]\n")
    flatout.run("run", "--plan", "other.toml", "train.py")
    assert boosts_ordered(flatout) == ["channels-last"]
    flatout.run("run", "--only", "loader-workers", "train.py")
    assert boosts_ordered(flatout) == ["loader-workers"]
    flatout.run("run", "--skip", "loader-workers", "train.py")
    assert boosts_ordered(flatout) == ["channels-last"]
    flatout.run("run", "--no-plan", "train.py")
    assert boosts_ordered(flatout) == []


def test_a_plan_that_cannot_be_honoured_is_refused(flat: called.Flatout, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')")
    (tmp_path / "flatout.toml").write_text("version = 99\n")
    done = flat("run", "train.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert not (tmp_path / "started").exists()
    message, cure = done.stderr.splitlines()
    assert "version 99" in message
    assert "next: " in cure


@pytest.mark.slow
def test_a_plan_for_something_else_is_told_in_one_line(flatout: Flatout) -> None:
    flatout.script(TRAINED)
    (flatout.folder / "flatout.toml").write_text(
        f'version = 1\nscript_sha256 = "{"0" * 64}"\n[boosts.channels-last]\n'
        '[machine]\nsystem = "Solaris"\ntorch = "1.0"\ncores = 999\n'
    )
    told = lines(flatout.run("run", "train.py"))
    assert "the script has changed" in told[0]
    assert "instead of Solaris" in told[0]
    assert "instead of 999" in told[0]
    assert "torch 9.9 instead of the plan's 1.0" in told[1]
    assert len(told) == 3


@pytest.mark.slow
def test_quiet_says_nothing_but_warnings(flatout: Flatout) -> None:
    flatout.script(TRAINED)
    assert lines(flatout.run("run", "--quiet", "train.py")) == []
    flatout.script(TRAINED + "sys.flatout_record(kind='fault', where='hook', message='KeyError')")
    (line,) = lines(flatout.run("run", "--quiet", "train.py"))
    assert "hook: KeyError" in line


@pytest.mark.slow
def test_json_is_the_only_thing_on_stdout(flatout: Flatout) -> None:
    flatout.script(f"{TRAINED}\nprint('of the script'); sys.exit(3)")
    done = flatout.run("run", "--json", "--no-plan", "train.py", "--json")
    document = json.loads(done.stdout)
    assert b"of the script" in done.stderr
    assert done.returncode == document["exit_code"] == 3
    assert document["schema"] == "flatout.run/1"
    assert document["command"] == ["train.py", "--json"]
    assert (document["steps"], document["samples_per_s"]) == (40, 200.0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_json_is_told_of_a_program_that_was_killed(flatout: Flatout) -> None:
    flatout.script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    done = flatout.run("run", "--json", "--no-plan", "train.py")
    assert done.returncode == -9
    assert json.loads(done.stdout)["exit_code"] == 137


@pytest.mark.slow
def test_a_real_training_with_the_real_agent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("""
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 2, (64,)))
for x, y in torch.utils.data.DataLoader(data, batch_size=8):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
""")
    (tmp_path / "flatout.toml").write_text("version = 1\n[boosts.channels-last]\n")
    options = {"cwd": tmp_path, "capture_output": True, "timeout": 120}
    plain = forked.bare([str(tmp_path / "train.py")], tmp_path, tmp_path)
    run = [sys.executable, "-m", "flatout", "run"]
    in_a_fork = ["--python", forked.python()]
    watched = subprocess.run([*run, "--no-plan", *in_a_fork, "train.py"], **options)
    assert watched.stdout.decode() == plain.stdout
    assert watched.returncode == 0
    assert watched.stderr.startswith(b"flatout: 8 steps, ")
    planned = subprocess.run([*run, "--json", *in_a_fork, "train.py"], **options)
    document = json.loads(planned.stdout)
    assert document["steps"] == 8
    assert document["engaged"] == ["channels-last"]
    assert document["faults"] == []
