"""The race for a GPU, on a CPU: its scripts, its turns, what it tells, and its clock."""

from __future__ import annotations

import functools
import importlib
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import forked

FOLDER = Path(__file__).parents[2] / "benchmarks" / "race"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if "_by_hand" not in path.stem)
STEPS = 3
NEAR = 0.15
"""How far the first losses may lie apart: other batches, bf16."""
OWN = ("gpu", "gpu_race", "gpu_race_summary", "record", "step_clock", "tuning")


@pytest.fixture
def modules(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    yield {name: importlib.import_module(name) for name in OWN}
    for name in OWN:
        sys.modules.pop(name, None)


@pytest.fixture
def race(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["gpu_race"]


@functools.cache
def losses(name: str) -> tuple[float, ...]:
    """What the script prints in its first steps."""
    argv = [str(FOLDER / f"{name}.py"), "--small", "--steps", str(STEPS)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as results:
        done = forked.bare(argv, Path(folder), Path(results))
    assert done.returncode == 0, done.stderr
    return tuple(map(float, re.findall(r"^step \d+ loss (\S+)", done.stdout, re.MULTILINE)))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_by_hand_begins_where_the_plain_script_begins(name: str) -> None:
    plain, by_hand = losses(name), losses(f"{name}_by_hand")
    assert len(plain) == len(by_hand) >= 2
    assert all(map(math.isfinite, plain + by_hand))
    assert by_hand[0] == pytest.approx(plain[0], rel=NEAR)


@pytest.fixture
def in_forks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each program of a race in a fork, with all that is kept of it in the test's folder."""
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(forked.python())
    monkeypatch.setenv("VIRTUAL_ENV", str(python.parents[1]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a benchmark for Linux")
@pytest.mark.usefixtures("in_forks")
def test_a_race_walks_dry(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On this CPU, and but for the tuning; `gpu.sh race --dry` walks all of it."""
    race, parts = modules["gpu_race"], {}
    for kind in ("", "_alone_1", "_without_1"):
        course = race.Course(race.DRY, True, tmp_path)
        *_, figures = race.of_part(course, kind)
        assert race.words(json.loads(json.dumps(figures)))
        parts[race.DRY + kind] = {"figures": figures}
        for name, row in figures["rows"].items():
            assert row.get("ms", 0) > 0, (name, row)
        few = {"fused-optimizer": course.applicable()["fused-optimizer"]}
        monkeypatch.setattr(race.Course, "applicable", lambda course, few=few: few)
    raced, alone, without = (each["figures"] for each in parts.values())
    assert list(raced["rows"]) == ["written", "hand", *race.PLANS, "all"]
    assert "need a GPU" in raced["rows"]["graphs"]["boosts"]["cuda-graphs"]
    assert raced["rows"]["all"]["boosts"]["fused-optimizer"] == "engaged"
    assert list(alone["gains"]) == list(without["gains"]) == ["fused-optimizer"]
    told = modules["gpu_race_summary"].summary(parts)
    assert told[1].startswith(race.DRY)
    assert "alone" in told[-1] and "beside the others" in told[-1]


def test_each_script_is_raced_and_has_its_version_by_hand(race: ModuleType) -> None:
    assert sorted(race.JOBS) == NAMES
    assert {path.stem for path in FOLDER.glob("*_by_hand.py")} == {f"{n}_by_hand" for n in NAMES}


def test_no_part_is_begun_that_three_calls_cannot_end(race: ModuleType) -> None:
    parts = race.parts(False)
    assert len({part[0] for part in parts}) == len(race.JOBS) * len(race.KINDS)
    assert all(limit == least <= 190 for _, _, limit, _, least in parts)


class Laps:
    """A course whose runs take no time: way -> what its runs give, one after the other."""

    def __init__(self, given: dict[str, list[dict[str, Any]]], left_s: float = 500.0) -> None:
        self.given, self.left_s = given, left_s
        self.order: list[str] = []

    def lap(self, way: str) -> dict[str, Any]:
        self.order.append(way)
        return self.given[way].pop(0)


def ms(value: float, **more: Any) -> dict[str, Any]:
    return {"step_ms": value, "steps": 30, **more}


def test_all_ways_are_run_in_turn(race: ModuleType) -> None:
    course = Laps({"a": [ms(10.0), ms(12.0)], "b": [ms(5.0, boosts={"x": "engaged"}), ms(5.0)]})
    *_, rows = race.in_turn(course, {"a": "a", "b": "b"}, 2)
    assert course.order == ["a", "b", "a", "b"]
    assert (rows["a"]["ms"], rows["a"]["spread"], rows["a"]["times_ms"]) == (11.0, 0.2, [10, 12])
    assert rows["b"]["boosts"] == {"x": "engaged"}
    assert race.gains(rows, "a") == {"b": 2.2}


def test_what_fails_tells_why_and_does_not_stop_the_others(race: ModuleType) -> None:
    course = Laps({"a": [ms(10.0), ms(10.0)], "b": [{"failed": "exit code 1: why"}]})
    *_, rows = race.in_turn(course, {"a": "a", "b": "b"}, 2)
    assert course.order == ["a", "b", "a"]
    assert rows["b"]["failed"] == "exit code 1: why"
    assert race.problem(rows, "a") == {}
    assert race.problem(rows, "b") == {"problem": "b: exit code 1: why"}
    assert race.words({"rows": rows}) == "a 10.00 ms, b failed"


def test_of_two_boosts_that_exclude_each_other_one_is_taken(race: ModuleType) -> None:
    promised = dict.fromkeys(["cuda-graphs", "fp16-autocast", "bf16-autocast", "compile", "tf32"])
    assert set(race.together(promised)) == {"bf16-autocast", "compile", "tf32"}


def test_what_a_run_tells_of_its_boosts(race: ModuleType) -> None:
    printed = '{"engaged": ["tf32"], "not_engaged": {"compile": "declined: x"}}'
    assert race.became(printed) == {"tf32": "engaged", "compile": "declined: x"}
    assert race.became("no document") == {}


def test_a_step_in_a_graph_counts_each_time_that_the_graph_runs(
    modules: dict[str, ModuleType],
) -> None:
    capturing = False

    class Graph:
        def capture_end(self) -> None:
            nonlocal capturing
            capturing = False

        def replay(self) -> None:
            pass

    clock = modules["step_clock"].Clock(1000.0)
    clock.cuda = SimpleNamespace(
        CUDAGraph=Graph,
        is_initialized=lambda: True,
        is_current_stream_capturing=lambda: capturing,
        synchronize=lambda: None,
    )
    clock.watch_graphs()
    clock.step()
    whole, forward = Graph(), Graph()
    capturing = True
    clock.step()
    whole.capture_end()
    forward.capture_end()
    assert len(clock.times) == 1, "a step that is recorded has not run"
    for graph in (whole, forward, whole):
        graph.replay()
    assert len(clock.times) == 3
