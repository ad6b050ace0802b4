"""What trainers know of how long they train."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import forked
from flatout_agent.live.run_length import TRAINERS, run_length

JOBS = Path(__file__).parents[2] / "jobs"
WATCHED = """
import json, runpy, sys
from torch.optim.optimizer import register_optimizer_step_post_hook
from flatout_agent.live.run_length import run_length

seen = []
def look(*given):
    found = run_length(sys._getframe(), len(seen) + 1)
    seen.append(found.steps_left if found else None)
register_optimizer_step_post_hook(look)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "left"),
    [
        ("plain", [4, 3, 2, 1, None]),  # its counter breaks off the first epoch
        # It counts a step once its optimizer is through.
        pytest.param("hf_trainer", [5, 4, 3, 2, 1], marks=pytest.mark.thorough),
        pytest.param("lightning_fit", [5, 4, 3, 2, 1], marks=pytest.mark.thorough),
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
    scope: dict[str, object] = {"__name__": name, "look": run_length, "sys": sys}
    code = "def step(self):\n    return look(sys._getframe(), 1)\nseen = step(object())"
    exec(compile(code, "trainer.py", "exec"), scope)
    assert scope["seen"] is None


DATA = """
import argparse, dataclasses, itertools, math, types
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
args = argparse.Namespace(epochs=3, steps=40)
config = {"epochs": 5, "train": {"steps": 60}}
loader = DataLoader(TensorDataset(torch.zeros(50, 2)), batch_size=5)
taken = 0
class Stop(Exception): pass
def step(micro_steps=1.0, after=1):
    global taken, seen
    taken += 1
    if taken == after:
        seen = look(sys._getframe(), taken, micro_steps)
        raise Stop
"""
LOOPS = {
    "for i in range(30): step()": 29,
    "for i in range(10, 30, 2): step(after=3)": 7,
    "for i in range(args.steps): step()": 39,
    "for i in range(config['train']['steps']): step()": 59,
    "for e in range(args.epochs):\n  for x in loader: step(after=12)": 18,
    "for e in range(2):\n  for i, (x,) in enumerate(loader): step()": 19,
    "for e in range(2):\n  with torch.enable_grad():\n    for x in loader:\n      try: step()\n"
    "      finally: pass": 19,
    "for x in loader: step(micro_steps=2.0)": 4,
    "n = 7\nfor i in range(n * len(loader) // 2): step()": 34,
    "for i in range(math.ceil(args.steps / 3)): step()": 13,
    "for f in ['a', 'b']:\n  for i in range(9): step()": 17,
    "for x, y in zip(loader, range(4)): step()": 3,
    "i = 0\nwhile i < args.steps: i += 1; step()": 39,
    "class T:\n  def __init__(self): self.epochs = 4\n  def fit(self):\n"
    "    for e in range(self.epochs): self.one()\n  def one(self):\n    for x in loader: step()\n"
    "T().fit()": 39,
    "@dataclasses.dataclass\nclass C: steps: int = 8\nc = C()\nfor i in range(c.steps): step()": 7,
    # A counter ends them
    "i = 0\nwhile i < args.steps:\n  for x in loader:\n    step(after=5)\n    i += 1": 35,
    "i = 0\nfor e in range(100):\n  for x in loader:\n    step()\n    i += 1\n"
    "    if i >= args.steps: break\n  if i >= args.steps: break": 39,
    "i = 0\nwhile True:\n  for x in loader:\n    step()\n    i += 1\n"
    "    if i == args.steps:\n      raise_ = 0\n      break\n  if i == args.steps: break": 39,
    "def go():\n  i = 0\n  while True:\n    for x in loader:\n      step()\n      i += 1\n"
    "      if i >= 25: return\ngo()": 24,
    "i = 0\nwhile i < args.steps:\n  for k, x in enumerate(loader):\n    step(micro_steps=2.0)\n"
    "    if k % 2: i += 1": 39,
    "for e in range(3):\n  i = 0\n  for x in loader:\n    step()\n    i += 1\n"
    "    if i >= 7: break": 20,
    "for f in range(2):\n  i = 0\n  while i < 6:\n    for x in loader:\n      step()\n      i += 1":
    11,
    "def one():\n  for x in loader: step()\ne = 0\nwhile e < 4:\n  one()\n  e += 1": 39,
    "def one():\n  for x in loader: step()\nfor e in range(9):\n  one()\n  if e == 50: break": 89,
    "for e in range(3):\n  for i, x in enumerate(loader):\n    step()\n    if i == 4: break": 11,
    # What cannot be told
    "for e in range(3): [step() for x in loader]": None,
    "while True: step()": None,
    "for i in itertools.count(): step()": None,
    "for x in (x for x in loader): step()": None,
    "for x in DataLoader(type('I', (IterableDataset,), {'__iter__': lambda s: iter(range(9))})()):"
    " step()": None,
    "step()": None,
    # Nothing of the program's is run
    "class Own:\n  @property\n  def n(self): raise SystemExit\nown = Own()\ntry:\n"
    "  for i in [0]: step()\nexcept Stop: pass\ntaken = 0\n"
    "def go():\n  for i in range(3):\n    step()\n    range(own.n)\ngo()": 2,
    "class Long(list):\n  def __len__(self): raise SystemExit\nfor i in Long([1, 2]): step()": None,
}  # fmt: skip


@pytest.mark.parametrize("text", LOOPS)
def test_loops_of_the_program(text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    body = "".join(f"    {line}\n" for line in text.splitlines())
    script.write_text(f"{DATA}\ntry:\n{body}except Stop: pass\n")
    scope: dict[str, object] = {"look": run_length, "sys": sys}
    exec(compile(script.read_text(), str(script), "exec"), scope)
    found = scope["seen"]
    assert (found.steps_left if found else None) == LOOPS[text]  # type: ignore[attr-defined]
    if found:
        assert "train.py:" in found.basis  # type: ignore[attr-defined]
