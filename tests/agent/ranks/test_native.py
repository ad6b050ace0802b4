"""Frameworks and scripts with DDP of their own on two gloo ranks, as torchrun would start them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import native_ranked
import ranked
from flatout.running.ranks.native import NativeStart
from flatout_agent import wire

pytestmark = pytest.mark.slow

TRAINER = """
import sys, torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 100  # of batches of 8 the last one has 4
    def __getitem__(self, index):
        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": (x[0] > 0).long()}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    def forward(self, x, labels):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

class Printing(Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print("step", self.state.global_step, "loss", loss.item(), flush=True)
        return loss

torch.manual_seed(0)
arguments = TrainingArguments(
    output_dir="out", num_train_epochs=2, per_device_train_batch_size=8, report_to="none",
    disable_tqdm=True, save_strategy="no", logging_strategy="no", learning_rate=1e-2,
    gradient_accumulation_steps=2, per_device_eval_batch_size=10)
trainer = Printing(Net(), arguments, train_dataset=Rows(), eval_dataset=Rows())
trainer.train()
if trainer.is_world_process_zero:
    pass
figures = trainer.evaluate()
print("accurate loss", figures["eval_loss"], "epochs", trainer.state.epoch,
      "steps", trainer.state.global_step)
"""


@pytest.fixture
def job(root: Path) -> list[str]:
    return [str(root / "tests" / "jobs"), "--steps", "40"]


def both(
    folder: Path, words: list[str], framework: str, batches: tuple[int, ...] = (64,)
) -> tuple[ranked.Ranked, ranked.Ranked]:
    """The program alone, seen to be of that framework, and as two ranks.

    batches: that the ranks would divide.
    """
    alone = ranked.run(folder, words, 1, native_ranked.LIMIT_S)
    assert alone.codes == (0,), alone.errors
    seen = [record for record in alone.records if isinstance(record, wire.NativeSeen)]
    assert (seen[-1].framework, seen[-1].against) == (framework, "")
    assert seen[-1].batches == batches
    together = native_ranked.run(folder, words, NativeStart(framework))
    assert together.codes == (0, 0), (together.refused, together.faults, together.errors)
    assert (together.seen.backend, together.seen.native) == ("gloo", framework)
    return alone, together


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "framework"),
    [("accelerate_loop", "accelerate"), ("fabric_loop", "fabric")],
)
def test_a_loop_prints_what_one_process_prints(
    name: str, framework: str, job: list[str], tmp_path: Path
) -> None:
    alone, together = both(tmp_path, [f"{job[0]}/{name}.py", *job[1:]], framework)
    expected = ranked.losses(alone.outputs[0])
    assert len(expected) == 40  # more than two epochs: their order is that of one process
    assert ranked.losses(together.outputs[0]) == pytest.approx(expected, rel=1e-4)
    assert ranked.losses(together.outputs[1]) == ranked.losses(together.outputs[0])


@pytest.mark.thorough
def test_lightning_trains_on_the_batches_of_one_process(job: list[str], tmp_path: Path) -> None:
    """The job prints before the backward pass: each rank the loss of its own rows."""
    alone, together = both(tmp_path, [f"{job[0]}/lightning_fit.py", *job[1:]], "lightning")
    expected = ranked.losses(alone.outputs[0])
    first, second = (ranked.losses(output) for output in together.outputs)
    assert first != second
    means = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    assert means == pytest.approx(expected, rel=1e-4)


@pytest.mark.thorough
def test_the_trainer_counts_evaluates_and_learns_as_in_one_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    alone, together = both(tmp_path, [str(script)], "transformers", (10, 8))
    one, two = alone.outputs[0], together.outputs[0]
    assert ranked.losses(two)[:12] == pytest.approx(ranked.losses(one)[:12], rel=1e-4)
    # The last batch of an epoch has 4 rows, which two ranks divide evenly as well.
    assert len(ranked.losses(two)) == len(ranked.losses(one)) == 26
    figures = [[float(each) for each in re.findall(r"[\d.]+", out.splitlines()[-1])]
               for out in (one, two)]  # fmt: skip
    assert figures[1] == pytest.approx(figures[0], rel=1e-3)


def test_ddp_of_a_script_is_what_torchrun_makes_of_it(job: list[str], tmp_path: Path) -> None:
    words = [f"{job[0]}/ddp.py", *job[1:]]
    together = native_ranked.run(tmp_path, words, NativeStart(wire.OWN_DDP))
    assert together.codes == (0, 0), (together.refused, together.faults, together.errors)
    assert together.seen.backend == "gloo"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert ranked.losses(together.outputs[0]) == ranked.losses(done.stdout)


@pytest.mark.thorough
def test_a_script_that_demands_its_rank_is_seen_before_it_fails(
    job: list[str], tmp_path: Path
) -> None:
    alone = ranked.run(tmp_path, [f"{job[0]}/ddp.py", *job[1:]], 1)
    assert alone.codes == (1,)
    assert "RANK expected" in alone.errors[0]
    seen = [record for record in alone.records if isinstance(record, wire.NativeSeen)]
    assert seen == [wire.NativeSeen(wire.OWN_DDP)]
