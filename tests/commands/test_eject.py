"""flatout eject: the plan as lines that can be pasted, in the order of a script."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

import forked
from commands.called import Flatout
from flatout.knowledge import boosts
from flatout.nouns.identity import GpuIdentity, Identity
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.reporting.lines import PLACES
from flatout.tuning import plan_file
from flatout_agent.boost import Moment
from flatout_agent.wire import JobFacts, OptimizerFacts

JOB = JobFacts(torch="2.13.0", python="3.12.1", system="linux", device="cuda", cores=8)
PLAN = Plan(
    boosts=(
        PlannedBoost("fused-optimizer", {}, 1.1, "exact"),
        PlannedBoost("bf16-autocast", {}, 1.9, "rounding"),
        PlannedBoost("loader-workers", {}, None, "exact"),
    ),
    speedup=2.5,
    job=JOB,
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def forks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that is active has a Python that has imported torch."""
    if not forked.POSSIBLE:
        return
    active = tmp_path_factory.mktemp("environment")
    (active / "bin").mkdir()
    (active / "bin" / "python").symlink_to(forked.python())
    monkeypatch.setenv("VIRTUAL_ENV", str(active))


def test_every_moment_has_a_place() -> None:
    assert {"environment", *(moment.value for moment in Moment)} == set(PLACES)


def test_lines_in_the_order_of_a_script(here: Path, flat: Flatout) -> None:
    plan_file.write(PLAN, here / "flatout.toml")
    text = flat.printed("eject")
    ast.parse(text)
    title, template, *_ = text.splitlines()
    assert title == "# flatout.toml as plain PyTorch: 3 boosts, 2.50x together"
    assert template.startswith("# A template: ")
    assert "inputs" in template
    assert "output," not in template  # made by the lines themselves
    heads = [line for line in text.splitlines() if line.startswith("# ----")]
    places = ["loader", "model", "optimizer"]
    assert heads == [f"# ---- {PLACES[place]}" for place in places]
    for planned in PLAN.boosts:
        assert boosts.get(planned.id).by_hand(JOB).strip() in text
    assert "# bf16-autocast (1.90x): " in text
    assert "# loader-workers: " in text
    assert 'torch.autocast("cuda"' in text


def test_every_boost_can_be_ejected(here: Path, flat: Flatout) -> None:
    every = tuple(PlannedBoost(boost.id, boost.defaults) for boost in boosts.every())
    plan_file.write(dataclasses.replace(PLAN, boosts=every), here / "all.toml")
    text = flat.printed("eject", "--plan", "all.toml")
    tree = ast.parse(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    given = [value for call in calls for value in (*call.args, *(k.value for k in call.keywords))]
    assert [ast.unparse(value) for value in given if getattr(value, "value", 0) is Ellipsis] == []
    assert [boost.id for boost in every if f"\n# {boost.id}: " not in text] == []


def test_json(here: Path, flat: Flatout) -> None:
    plan_file.write(PLAN, here / "flatout.toml")
    found = json.loads(flat.printed("eject", "--json"))
    assert found["schema"] == "flatout.eject/1"
    assert found["plan"] == "flatout.toml"
    assert found["speedup"] == 2.5
    assert [entry["id"] for entry in found["boosts"]] == [
        "loader-workers",
        "bf16-autocast",
        "fused-optimizer",
    ]
    entry = found["boosts"][1]
    assert (entry["where"], entry["risk"], entry["gain"]) == ("model", "rounding", 1.9)
    assert 'with torch.autocast("cuda", dtype=torch.bfloat16):' in entry["lines"]


SCRIPT = """\
import sys
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(50):
    guess = net(torch.randn(8, 4))
    loss = guess.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
open("kept.txt", "w").write(str(sys.argv))
"""


def ejected_script(here: Path, flat: Flatout, script: str, *options: str) -> tuple[str, str]:
    """What is printed for a plan of three boosts that was made for a script, and what is told."""
    (here / "train.py").write_bytes(script.encode())
    facts = dataclasses.replace(
        JOB,
        device="cpu",
        optimizers=(OptimizerFacts("SGD", True, 5, 2, "float32", fused=None, foreach=None),),
    )
    boosts = (*PLAN.boosts[:2], PlannedBoost("gc-pause", {}, 1.1, "exact"))
    sha = hashlib.sha256(script.encode()).hexdigest()
    plan = dataclasses.replace(
        PLAN, boosts=boosts, command=("train.py", "7"), script_sha256=sha, job=facts
    )
    plan_file.write(plan, here / "flatout.toml")
    done = flat("eject", *options)
    assert done.returncode == 0
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_the_script_itself_is_changed(here: Path, flat: Flatout) -> None:
    text, told = ejected_script(here, flat, SCRIPT)
    assert (here / "train.py").read_text() == SCRIPT
    assert not (here / "kept.txt").exists()
    assert told.startswith("flatout: running the changed train.py for 3 steps, 120 s at most")
    head, diff = text.split("--- train.py\n+++ train.py\n")
    assert all(line.startswith("#") for line in head.splitlines() if line)
    assert "# The changed script was run: 3 steps went through." in head
    assert "# Left to you, gc-pause (1.10x): " in head
    assert "\n#   gc.freeze()  # after the imports\n" in head
    changes = [line for line in diff.splitlines() if line[0] in "+-"]
    assert changes == [
        "-opt = torch.optim.SGD(net.parameters(), lr=0.1)",
        "+opt = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)",
        "-    guess = net(torch.randn(8, 4))",
        '+    with torch.autocast("cpu", dtype=torch.bfloat16):',
        "+        guess = net(torch.randn(8, 4))",
        "+    guess = guess.float()",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_what_fails_in_the_changed_script_stays_a_template(here: Path, flat: Flatout) -> None:
    script = SCRIPT.replace(
        "net = torch.nn.Linear(4, 1)",
        "class Alone(torch.nn.Linear):\n"
        "    def forward(self, rows):\n"
        "        return [super().forward(rows)]\n"
        "net = Alone(4, 1)",
    ).replace("guess.square()", "sum(guess).square()")
    text, _ = ejected_script(here, flat, script)
    head, diff = text.split("--- train.py\n+++ train.py\n")
    assert "# Left to you, bf16-autocast (1.90x): " in head
    assert "'list' object has no attribute 'float'" in head
    assert "run: 3 steps went through" in head
    assert "fused=True" in diff
    assert "autocast" not in diff


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "x = 1"])
def test_the_diff_is_one_that_patch_takes(end: str, last: str, here: Path, flat: Flatout) -> None:
    script = SCRIPT.replace("import sys", "# a form feed: \x0c\nimport sys") + last
    text, _ = ejected_script(here, flat, script.replace("\n", end), "--no-run")
    (here / "it.diff").write_bytes(text.encode())
    subprocess.run(["patch", "--binary", "train.py", "it.diff"], check=True, capture_output=True)
    changed = (here / "train.py").read_bytes().decode()
    assert f"guess = guess.float(){end}" in changed
    assert changed.endswith(script.replace("\n", end)[-40:])


def test_a_script_that_is_not_here_gives_templates(here: Path, flat: Flatout) -> None:
    plan_file.write(dataclasses.replace(PLAN, command=("gone.py",)), here / "flatout.toml")
    text = flat.printed("eject")
    assert "\n# no diff: no such script: gone.py (in " in text
    assert "# ---- Where the model is made and called" in text


def test_the_changed_script_need_not_be_run(here: Path, flat: Flatout) -> None:
    text, told = ejected_script(here, flat, SCRIPT, "--no-run")
    assert told == ""
    assert "# The changed script was not run." in text
    text, _ = ejected_script(here, flat, SCRIPT, "--no-run", "--json")
    found = json.loads(text)
    assert (found["script"], found["tried"]) == ("train.py", "")
    assert found["diff"][:2] == ["--- train.py", "+++ train.py"]
    because = {entry["id"]: entry["template_because"] for entry in found["boosts"]}
    assert because["bf16-autocast"] == ""
    assert because["gc-pause"] == "flatout cannot tell where in the script its lines belong"
    (here / "train.py").write_text(f"# changed\n{SCRIPT}")
    assert "# the script has changed since the plan was made" in flat.printed("eject", "--no-run")


def test_a_plan_by_hand_says_that_the_program_is_unknown(here: Path, flat: Flatout) -> None:
    machine = Identity("Linux", None, 4, None, (GpuIdentity("NVIDIA L4"),))
    plan_file.write(dataclasses.replace(PLAN, job=None, machine=machine), here / "flatout.toml")
    text = flat.printed("eject")
    assert 'torch.autocast("cuda"' in text
    assert text.splitlines()[-1].startswith("# The plan does not say for which program")


def test_nothing_to_print(here: Path, flat: Flatout) -> None:
    done = flat("eject")
    assert done.returncode == 2
    assert "there is no plan at flatout.toml" in done.stderr
    plan_file.write(Plan(boosts=()), here / "flatout.toml")
    done = flat("eject")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("flatout: flatout.toml holds no boost\n  next: ")
