"""`flatout bench` as a user starts it: this CPU, wrong arguments, an interruption, no torch."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands.called import Ended, Flatout, process

pytestmark = pytest.mark.slow


def variables(folder: Path) -> dict[str, str]:
    return {"FLATOUT_CACHE": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def bench(flat: Flatout, tmp_path: Path) -> Callable[..., Ended]:
    """`flatout bench` in an empty folder."""
    return functools.partial(flat, "bench", folder=tmp_path, variables=variables(tmp_path))


def document(done: Ended | subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_ceiling_of_this_cpu(tmp_path: Path) -> None:
    arguments = ["--quick", "--only", "matmul-cpu-fp32", "--python", sys.executable]
    done = process("bench", *arguments, "--json", folder=tmp_path, **variables(tmp_path))
    assert done.returncode == 0, done.stderr
    found = document(done)
    assert found["schema"] == "flatout.bench/1"
    (ceiling,) = found["ceilings"]
    assert (ceiling["id"], ceiling["device"], ceiling["unit"]) == (
        "matmul-cpu-fp32",
        "cpu",
        "TFLOP/s",
    )
    assert 0.001 < ceiling["value"] < 50
    assert ceiling["datasheet"] is None
    assert (found["quick"], found["passed"]) == (True, None)
    assert "[1/1] cpu, matrix product, fp32" in done.stderr


@pytest.mark.thorough
def test_all_of_it_and_no_such_gpu(tmp_path: Path) -> None:
    words = ("bench", "--quick", "--json", "--expect", "h100")
    done = process(*words, folder=tmp_path, **variables(tmp_path))
    found = document(done)
    ids = {one["id"] for one in found["ceilings"]}
    assert {"matmul-cpu-bf16", "memory-cpu", "jpeg-decode-core"} <= ids
    lost = {one["note"] for one in found["ceilings"] if one["value"] is None}
    assert lost <= {"not measured: out of time"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]
    assert (done.returncode, found["passed"]) == (1, False)
    assert "HW041" in [finding["code"] for finding in found["findings"]]


@pytest.mark.thorough
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interruption_keeps_what_was_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flatout", "bench", "--python", sys.executable, "--json"]
    bench = subprocess.Popen(
        [*command, "--quick", "--only", "matmul-cpu-fp32", "--only", "memory-cpu"],
        env={**os.environ, **variables(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert bench.stderr is not None
    for line in bench.stderr:
        if "[1/2]" in line:
            break
    bench.send_signal(signal.SIGINT)
    out, _ = bench.communicate(timeout=120)
    assert bench.returncode == 130
    found = json.loads(out)
    assert found["interrupted"] is True
    assert [one["id"] for one in found["ceilings"]] == ["matmul-cpu-fp32"]


@pytest.mark.gpu
def test_the_real_gpu_here(tmp_path: Path) -> None:
    """Whole and quick, in the time that was promised, and near its data sheet."""
    began = time.monotonic()
    done = process("bench", "--quick", "--json", FLATOUT_CACHE=str(tmp_path))
    assert time.monotonic() - began < 40
    found = document(done)
    lost = {one["id"]: one["note"] for one in found["ceilings"] if one["value"] is None}
    assert lost == {}
    shares = {one["id"]: one["share"] for one in found["ceilings"] if one["share"] is not None}
    assert all(0.05 < share <= 1.1 for share in shares.values()), shares
