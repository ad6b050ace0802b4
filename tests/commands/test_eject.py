"""flatout eject: the plan as lines that can be pasted, in the order of a script."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path

import pytest

from flatout.__main__ import outcome
from flatout.knowledge import boosts
from flatout.nouns.identity import GpuIdentity, Identity
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.reporting.lines import PLACES
from flatout.tuning import plan_file
from flatout_agent.boost import Moment
from flatout_agent.wire import JobFacts

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


def test_every_moment_has_a_place() -> None:
    assert {"environment", *(moment.value for moment in Moment)} == set(PLACES)


def test_lines_in_the_order_of_a_script(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_file.write(PLAN, here / "flatout.toml")
    assert outcome(["eject"]) == 0
    text = capsys.readouterr().out
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


def test_every_boost_can_be_ejected(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = tuple(PlannedBoost(boost.id, boost.defaults) for boost in boosts.every())
    plan_file.write(dataclasses.replace(PLAN, boosts=every), here / "all.toml")
    assert outcome(["eject", "--plan", "all.toml"]) == 0
    text = capsys.readouterr().out
    tree = ast.parse(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    given = [value for call in calls for value in (*call.args, *(k.value for k in call.keywords))]
    assert [ast.unparse(value) for value in given if getattr(value, "value", 0) is Ellipsis] == []
    assert [boost.id for boost in every if f"\n# {boost.id}: " not in text] == []


def test_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_file.write(PLAN, here / "flatout.toml")
    assert outcome(["eject", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
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


def test_parameters_of_the_plan(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    boost = boosts.get("compile")
    mode = boost.params["mode"][1]
    params = {"scope": "whole", "mode": mode}
    plan = dataclasses.replace(PLAN, boosts=(PlannedBoost("compile", params),))
    plan_file.write(plan, here / "flatout.toml")
    assert outcome(["eject"]) == 0
    assert boost.by_hand(JOB, params).strip() in capsys.readouterr().out
    assert boost.by_hand(JOB, params) != boost.by_hand(JOB)


def test_a_plan_by_hand_says_that_the_program_is_unknown(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Identity("Linux", None, 4, None, (GpuIdentity("NVIDIA L4"),))
    plan_file.write(dataclasses.replace(PLAN, job=None, machine=machine), here / "flatout.toml")
    assert outcome(["eject"]) == 0
    text = capsys.readouterr().out
    assert 'torch.autocast("cuda"' in text
    assert text.splitlines()[-1].startswith("# The plan does not say for which program")


def test_nothing_to_print(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(["eject"]) == 2
    assert "there is no plan at flatout.toml" in capsys.readouterr().err
    plan_file.write(Plan(boosts=()), here / "flatout.toml")
    assert outcome(["eject"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("flatout: flatout.toml holds no boost\n  next: ")
