"""The program in the user's interpreter: what it tells, and what a fault costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout_programs import ceilings as program
from flatout_programs.kernels.kernel import CeilingKernel, Setup
from flatout_programs.tell import MARK
from probing.fake_packages import bare

FILE = Path(program.__file__)


def orders(**changes: Any) -> dict[str, Any]:
    whole = {"quick": True, "wanted": [], "devices": [], "done": [], "budget_s": 1.0, "folder": "."}
    return {**whole, **changes}


def told(python: str, **changes: Any) -> list[dict[str, Any]]:
    command = [python, str(FILE), json.dumps(orders(**changes))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    return [json.loads(line.partition(MARK)[2]) for line in lines]


@pytest.mark.slow
def test_one_ceiling_from_a_real_process() -> None:
    said = told(sys.executable, wanted=["launch-latency", "matmul-cpu-fp32"], budget_s=20.0)
    assert said[0]["torch"] == torch.__version__
    assert {"device": "cpu"} in said[0]["devices"]
    assert ["matmul-cpu-fp32", "cpu"] in said[1]["planned"]
    assert any("point" in one for one in said)
    assert said[-1] == {"done": True}


def test_without_torch(tmp_path: Path) -> None:
    (said,) = [one for one in told(bare(tmp_path)) if "error" in one]
    assert said["torch_missing"] is True


def measured(*kernels: CeilingKernel, budget_s: float = 5.0) -> tuple[list[dict[str, Any]], bool]:
    said: list[dict[str, Any]] = []
    here = Setup(torch, quick=True)
    finished = program._measure(here, list(kernels), budget_s, said.append)
    return said, finished


def kernel(name: str, curve: Any, **facts: Any) -> CeilingKernel:
    return CeilingKernel(name, name, "cpu", "GB/s", curve, **facts)


def test_an_error_costs_its_own_row() -> None:
    def fails(_: Any) -> Any:
        yield "small", 1.0
        raise MemoryError("2 GiB")

    said, finished = measured(
        kernel("fails", fails), kernel("works", lambda _: iter([("a", 2.0), ("b", 3.0)]))
    )
    assert finished
    ends = [one for one in said if "end" in one]
    assert ends == [
        {"end": "fails", "note": "MemoryError: 2 GiB"},
        {"end": "works", "note": ""},
    ]
    assert [one["point"] for one in said if "point" in one] == [
        ["small", 1.0],
        ["a", 2.0],
        ["b", 3.0],
    ]


def test_what_cannot_be_measured_says_why() -> None:
    said, _ = measured(kernel("it", lambda _: iter(()), impossible="no decoder"))
    assert said[-1] == {"end": "it", "note": "no decoder"}


def test_when_the_time_is_overdrawn_the_rest_is_left() -> None:
    said, finished = measured(kernel("late", lambda _: iter([("a", 1.0)])), budget_s=-10.0)
    assert finished
    assert said[-1] == {"end": "late", "note": "not measured: out of time"}


def test_time_is_shared_by_weight_and_the_rest_handed_on() -> None:
    seconds: list[float] = []

    def curve(time_slice: Any) -> Any:
        seconds.append(time_slice.seconds)
        yield "a", 1.0

    measured(*(kernel(str(n), curve, weight=0.25) for n in range(4)), budget_s=0.4)
    assert seconds[0] == pytest.approx(0.1, rel=0.2)
    assert all(one <= 0.25 for one in seconds)
    assert seconds[-1] == pytest.approx(0.25, rel=0.2)  # at most a second for weight 1


def test_a_family_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout_programs.kernels import memory

    def broken(here: Setup) -> Any:
        raise RuntimeError("no driver")

    monkeypatch.setattr(memory, "kernels", broken)
    said: list[dict[str, Any]] = []
    found = program._kernels(Setup(torch, quick=True), said.append)
    assert said == [{"lost": "memory", "note": "RuntimeError: no driver"}]
    assert any(one.id == "matmul-cpu-fp32" for one in found)
