"""The harness for a GPU machine, on a CPU: it is never what fails there."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="a script for Linux"),
]


@pytest.fixture
def gpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    module = importlib.import_module("gpu")
    monkeypatch.setattr(module, "LEAST_S", 1.0)
    yield module
    for name in ("gpu", "record"):
        sys.modules.pop(name, None)


def harness(root: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", str(root / "benchmarks" / "gpu.sh"), *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=900, **more
    )


def test_it_finds_a_python_and_lists_every_part(root: Path) -> None:
    done = harness(root, "--list")
    assert done.returncode == 0, done.stderr
    groups = dict(line.split(": ") for line in done.stdout.splitlines())
    assert list(groups) == ["tests", "rates", "commands", "race"]
    assert "table_mlp" in groups["race"]


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "group",
    # Parts are the benchmarks themselves, which take minutes.
    ["race --only table_mlp", "tests", "rates", "commands", "race"],
)
def test_a_dry_run_walks_every_part(root: Path, tmp_path: Path, group: str) -> None:
    group, *only = group.split()
    done = harness(root, group, *only, "--dry", "--out", str(tmp_path), "--seconds", "880")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / f"{group}.json").read_text())
    for name, outcome in document["parts"].items():
        assert "failed" not in outcome, (name, outcome)
        assert outcome["figures"], name
        assert outcome["seconds"] > 0
        assert f"\n{name}" in f"\n{done.stdout}"


def program(code: str) -> tuple[str, ...]:
    return ("-c", code)


SOUND = program("print('{\"x\": 1}'); print('{\"x\": 2}')")
BROKEN = program("print('{\"x\": 3}'); import sys; print('why', file=sys.stderr); sys.exit(3)")
ENDLESS = program("print('{\"x\": 4}', flush=True); import time; time.sleep(600)")
MACHINE = {"gpu": "H200", "torch": "2.13"}


def run(gpu: ModuleType, folder: Path, *parts: Any, end_s: float = 500.0, **more: Any) -> Any:
    results = gpu.Results(folder, "rates", more.pop("machine", MACHINE))
    runner = gpu.Runner(results, time.monotonic() + end_s)
    failed = runner.run(list(parts), more.pop("side_by_side", 1), more.pop("again", False))
    return failed, json.loads(results.path.read_text())["parts"] if results.path.exists() else {}


@pytest.mark.few(1)
@pytest.mark.parametrize("side_by_side", [3, 1])
def test_a_part_that_fails_does_not_stop_the_others(
    gpu: ModuleType, tmp_path: Path, side_by_side: int, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [
        gpu.Part("broken", BROKEN, 100),
        gpu.Part("endless", ENDLESS, 2, lambda figures: f"x is {figures['x']}"),
        gpu.Part("sound", SOUND, 100, lambda figures: f"x is {figures['x']}"),
    ]
    failed, found = run(gpu, tmp_path, *parts, side_by_side=side_by_side)
    assert failed == 2
    assert found["sound"]["figures"] == {"x": 2}
    assert found["broken"]["failed"] == "exit code 3"
    assert found["broken"]["printed"] == "why\n"
    assert found["broken"]["figures"] == {"x": 3}
    assert found["endless"]["failed"] == "took more than 2 s"
    assert found["endless"]["figures"] == {"x": 4}, "what was known when it was cut off"
    told = capsys.readouterr().out
    assert "failed: took more than 2 s; x is 4" in told
    assert "x is 2" in told
    assert "===== broken\nwhy" in (tmp_path / "rates.txt").read_text()


def test_it_goes_on_with_what_has_not_succeeded(
    gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(gpu, tmp_path, gpu.Part("one", SOUND, 100), gpu.Part("two", BROKEN, 100))
    capsys.readouterr()
    mended = [gpu.Part("one", BROKEN, 100), gpu.Part("two", SOUND, 100)]
    failed, found = run(gpu, tmp_path, *mended)
    assert (failed, found["one"]["figures"], found["two"]["figures"]) == (0, {"x": 2}, {"x": 2})
    assert "before: done" in capsys.readouterr().out
    failed, found = run(gpu, tmp_path, *mended, again=True)
    assert (failed, found["one"]["failed"]) == (1, "exit code 3")
    _, found = run(gpu, tmp_path, gpu.Part("two", SOUND, 100), machine={**MACHINE, "gpu": "H100"})
    assert list(found) == ["two"], "another machine's figures are not kept among these"


def test_without_time_nothing_is_begun(
    gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, found = run(gpu, tmp_path, gpu.Part("one", SOUND, 100), end_s=1.0)
    assert (failed, found) == (1, {})
    assert "no time left; call again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "tried", "problem"),
    [
        (1, True, None),
        (2, False, None),  # on an H200 nanoGPT, which compiles itself, left nothing to try
        (3, True, "exit code 3"),
    ],
)
def test_a_tuning_that_finds_or_tries_nothing_has_not_failed(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int, tried: bool, problem: str | None
) -> None:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    commands = importlib.import_module("gpu_commands")
    written = {"faults": [], "speedup": None, "tried": tried, "trials": [], "notes": []}
    written |= dict.fromkeys(("baseline", "best", "speedup_interval", "guard"))
    done = subprocess.CompletedProcess([], code, json.dumps(written), "")
    monkeypatch.setattr(commands, "flatout", lambda *words, folder: done)
    figures = commands.tune("tune_text", False)
    assert figures["problem"] == problem
    for name in ("gpu_commands", "tuning"):
        sys.modules.pop(name, None)
