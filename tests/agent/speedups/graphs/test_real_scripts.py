"""cuda-graphs takes hold in scripts as people write them: those of the race, at a small size.

Without a GPU it records on tapes (`taped.py`); all else is as in `flatout run --plan`.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import forked
from agent.conftest import AgentRun, RunAgent
from agent_paths import INJECT

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[3]
RACE = TESTS.parent / "benchmarks" / "race"
PACKAGES = {"bert_trainer": "transformers", "lit_images": "lightning"}
FIRST = ["gpt", "table_mlp", "lstm_words", "gan", "diffusion"]
NAMES = FIRST + sorted(
    {path.stem for path in RACE.glob("*.py") if "_by_hand" not in path.stem} - set(FIRST)
)
STEPS = 50


def command(name: str) -> list[str]:
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    return [str(RACE / f"{name}.py"), "--small", "--steps", str(STEPS)]


def losses(printed: str) -> list[float]:
    found = re.findall(r"^step \d+ loss (\S+)", printed, re.MULTILINE)
    assert len(found) >= 3
    return list(map(float, found))


def engaged(run: AgentRun) -> bool:
    assert run.returncode == 0, run.stderr
    note = run.notes()["cuda-graphs"]
    return note.state == "engaged" and note.reason.startswith("recorded")


@pytest.mark.few(len(FIRST))
@pytest.mark.parametrize("name", NAMES)
def test_it_takes_hold_and_the_losses_are_the_same(
    run_agent: RunAgent, tmp_path: Path, name: str
) -> None:
    written = forked.bare(command(name), tmp_path, tmp_path)
    assert written.returncode == 0, written.stderr
    taped = [str(TESTS / "taped.py"), *command(name)]
    run = run_agent(taped, boosts=("cuda-graphs",), light=True)
    assert engaged(run), run.notes()
    assert losses(run.stdout) == losses(written.stdout)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_it_takes_hold_on_the_gpu(run_agent: RunAgent, name: str) -> None:
    given = os.environ.get("PYTHONPATH", "")  # `gpu.sh` has packages there that are not installed
    path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(INJECT), given]))}

    def run(*boosts: str) -> AgentRun:
        return run_agent(command(name), boosts=boosts, name="-".join(["run", *boosts]), env=path)

    with ThreadPoolExecutor(2) as both:
        plain, recorded = both.submit(run), both.submit(run, "cuda-graphs")
    assert plain.result().returncode == 0, plain.result().stderr
    assert engaged(recorded.result()), recorded.result().notes()
    expected = pytest.approx(losses(plain.result().stdout), rel=0.05)
    assert losses(recorded.result().stdout) == expected
