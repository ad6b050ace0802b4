"""What trainers know of how long they train."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import forked
from flatout_agent.live.run_length import TRAINERS, steps_left

JOBS = Path(__file__).parents[2] / "jobs"
WATCHED = """
import json, runpy, sys
from torch.optim.optimizer import register_optimizer_step_post_hook
from flatout_agent.live.run_length import steps_left

seen = []
register_optimizer_step_post_hook(lambda *given: seen.append(steps_left(sys._getframe())))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "left"),
    [
        ("hf_trainer", [5, 4, 3, 2, 1]),  # it counts a step once its optimizer is through
        ("lightning_fit", [5, 4, 3, 2, 1]),
        pytest.param("plain", [None] * 5, marks=pytest.mark.thorough),
    ],
)
def test_steps_left_at_each_step(job: str, left: list[int | None], tmp_path: Path) -> None:
    script = tmp_path / "watched.py"
    script.write_text(WATCHED)
    done = forked.bare([str(script), str(JOBS / f"{job}.py"), "--steps", "5"], tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == left


def test_a_trainer_of_another_kind_tells_nothing() -> None:
    name = next(iter(TRAINERS))
    scope: dict[str, object] = {"__name__": name, "look": steps_left, "sys": sys}
    code = "def step(self):\n    return look(sys._getframe())\nseen = step(object())"
    exec(compile(code, "trainer.py", "exec"), scope)
    assert scope["seen"] is None
