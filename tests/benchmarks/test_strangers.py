"""The strangers' scripts train, and those written by hand begin where the plain ones begin."""

from __future__ import annotations

import functools
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import forked

FOLDER = Path(__file__).parents[2] / "benchmarks" / "strangers"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
BY_HAND = [name for name in NAMES if name.endswith("_by_hand")]
STEPS = 3
NEAR = 0.05
"""How far the first losses may lie apart: other random numbers, bf16."""


FEW = ("private_sgd_vmap", "tabular_mlp")
"""Of other styles, and quick; all of them with `make thorough`."""


@functools.cache
def losses(name: str) -> tuple[float, ...]:
    """What the script prints in its first steps; one thread, for a machine that does more."""
    argv = [str(FOLDER / f"{name}.py"), "--steps", str(STEPS)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as results:
        if name in FEW:
            done = forked.bare(argv, Path(folder), Path(results))
        else:
            done = _process(argv, folder)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^step \d+ loss (\S+)", done.stdout, re.MULTILINE)
    return tuple(map(float, found))


def _process(argv: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in FEW else pytest.mark.thorough)
        for name in NAMES
    ],
)
def test_prints_a_finite_loss_each_step(name: str) -> None:
    found = losses(name)
    assert len(found) == STEPS
    assert all(map(math.isfinite, found))


@pytest.mark.thorough
@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand_begins_where_the_plain_script_begins(name: str) -> None:
    plain = losses(name.removesuffix("_by_hand"))
    assert losses(name)[0] == pytest.approx(plain[0], rel=NEAR)


def test_the_table_names_every_script() -> None:
    table = (FOLDER / "README.md").read_text()
    assert set(re.findall(r"^\| `(\w+)\.py`", table, re.MULTILINE)) == set(NAMES) - set(BY_HAND)
