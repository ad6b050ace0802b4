"""Real runs: a script with a fault is told its code and its line, one without is told nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import forked

HERE = Path(__file__).parent
SCRIPT = HERE / "loop_faults.py"
OURS = ("KERN", "MEM", "LOOP")


@dataclass(frozen=True)
class Told:
    """What `flatout profile` told of one run."""

    document: dict[str, Any]

    @property
    def lines(self) -> dict[str, str | None]:
        """Code -> where, of the families that this script is about."""
        found = self.document["findings"]
        return {each["code"]: each["where"] for each in found if each["code"].startswith(OURS)}

    def gain(self, code: str) -> float:
        """Predicted for this code."""
        (found,) = (each for each in self.document["findings"] if each["code"] == code)
        return float(found["gain"]["predicted"])


def native_bf16() -> bool:
    pytest.importorskip("torch")
    from flatout_agent.speedups.precision import native_bf16

    return native_bf16("cpu").native


def profiled(*faults: str, half: bool = True) -> Told:
    """Run the script under `flatout profile`; in bfloat16 where that is native, unless said."""
    options = [word for fault in faults for word in ("--fault", fault)]
    command = [sys.executable, "-m", "flatout", "profile", "--json", "--stop", "--no-bench"]
    given = ["--half"] if half and native_bf16() else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, "--python", forked.python(), SCRIPT.name, *given, *options],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode in (0, 1), ended.stderr[-2000:]
    assert ended.stdout, ended.stderr[-2000:]
    return Told(json.loads(ended.stdout))


def line(fault: str) -> str:
    """Where the script says that this fault is."""
    for number, text in enumerate(SCRIPT.read_text(encoding="utf-8").splitlines(), 1):
        _, _, named = text.partition("# fault: ")
        if fault in named.split(", "):
            return f"{SCRIPT.name}:{number}"
    raise AssertionError(fault)


@pytest.mark.slow
def test_without_a_fault_nothing_is_found() -> None:
    if not native_bf16():
        pytest.skip("in float32 without native bfloat16 nothing is found either, but slowly")
    # On a machine that does other work one recording may show what is not there; not each of them.
    assert any(profiled().lines == {} for _ in range(3))


@pytest.mark.slow
def test_faults_of_the_loop() -> None:
    told = profiled("forward-unused", "retain-graph", "checkpoint", "losses-kept", "zeros")
    assert told.lines["LOOP016"] == line("forward-unused")
    assert "LOOP012" not in told.lines, "it is one call"
    assert told.lines["LOOP014"] == line("retain-graph")
    assert told.lines["LOOP008"] == line("checkpoint")
    assert told.lines["MEM005"] == line("losses-kept")
    assert told.lines["MEM008"] == line("zeros")
    assert "LOOP013" not in told.lines


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("anomaly", "LOOP001"),
        ("attention", "KERN008"),
        ("norm", "KERN009"),
        ("copies", "KERN019"),
        ("math-attention", "KERN020"),
        ("unfused", "KERN010"),
        ("eval-grad", "LOOP006"),
        ("eval-often", "LOOP007"),
        ("logging", "LOOP009"),
        ("model-rebuilt", "LOOP010"),
        ("optimizer-rebuilt", "LOOP011"),
        ("never-zeroed", "LOOP013"),
        ("shapes", "LOOP015"),
        ("recompiles", "LOOP004"),
        ("graph-break", "LOOP005"),
    ],
)
def test_a_fault_with_its_line(fault: str, code: str) -> None:
    lines = profiled(fault).lines
    assert Path(lines[code] or "").name == line(fault)
    assert not set(lines) & {"LOOP012", "LOOP014", "MEM005", "MEM008", "LOOP008"}


@pytest.mark.thorough
def test_a_setting_of_the_whole_process() -> None:
    assert profiled("deterministic").lines["KERN011"] is None


@pytest.mark.thorough
def test_a_second_pass_through_one_graph_is_predicted() -> None:
    assert profiled("retain-graph", "twice").gain("LOOP014") > 1.15


@pytest.mark.thorough
def test_float64() -> None:
    told = profiled("float64", half=False)
    assert told.lines["KERN001"]
    assert told.gain("KERN001") > 1.3


@pytest.mark.thorough
def test_convolutions() -> None:
    told = profiled("channels-first", half=False)
    assert told.lines["KERN006"] == line("channels-first")
    assert "KERN018" not in told.lines
    assert "KERN018" in profiled("no-onednn", half=False).lines


@pytest.mark.thorough
def test_float32_on_a_cpu_with_bfloat16() -> None:
    if not native_bf16():
        pytest.skip("bfloat16 is not native here")
    assert profiled(half=False).lines["KERN004"] == line("float32")
