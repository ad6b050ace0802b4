"""`flatout run --nodes` and `--restarts` with the real agent: equal losses, saved and gone on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

import forked
from running.nodes import resuming
from running.nodes.two_nodes import ended, environ, said, start, two_nodes
from running.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals, /proc"),
]
STEPS = 200
"""So many that a signal comes long before the last, however late it is."""
SHORT = (str(STEPS), "0")
SLOW = (str(STEPS), "0.1")
RANKS = ("--no-trial", "--nodes", "auto", "--ranks", "2")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Losses of one process that was not disturbed."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "train.py").write_text(resuming.program())
    out, err = forked.start(["train.py", *SHORT], folder, environ()).communicate(timeout=240)
    losses = resuming.losses(out)
    assert len(losses) == STEPS, err
    return losses


def test_two_nodes_save_when_one_is_warned_and_one_machine_goes_on(
    tmp_path: Path, alone: dict[int, str]
) -> None:
    """Two nodes, warned: exit code 75; then two ranks, ended by SIGTERM; then one process."""
    (tmp_path / "train.py").write_text(resuming.program())
    nodes = two_nodes(tmp_path, script=("train.py", *SLOW))
    until(lambda: "step 6 " in said(tmp_path))
    nodes[1].send_signal(signal.SIGUSR1)
    errors = ended(nodes, [75, 75])
    assert "ended first" not in "".join(errors)
    warned_at = max(resuming.losses(said(tmp_path)))
    assert 6 <= warned_at < STEPS

    ranks = start(tmp_path, "--no-trial", "--ranks", "2", "train.py", *SLOW)
    until(lambda: f"step {warned_at + 4} " in said(tmp_path))
    ranks.send_signal(signal.SIGTERM)
    (error,) = ended([ranks], [143])
    assert "ended first" not in error
    ended_at = max(resuming.losses(said(tmp_path)))
    assert warned_at + 4 <= ended_at < STEPS

    last = start(tmp_path, "--nodes", "1", "--ranks", "1", "train.py", *SHORT)
    ended([last], [0])
    output = said(tmp_path)
    assert [line for line in output.splitlines() if line.startswith("from")] == [
        "from 0",
        f"from {warned_at}",
        f"from {ended_at}",
    ]
    assert output.count("step ") == STEPS
    assert resuming.losses(output) == alone


DDP = """
import os, signal, sys, time
import torch
import torch.distributed as dist
import flatout
from torch.nn.parallel import DistributedDataParallel

STEPS, SLEEP = int(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
dice = torch.Generator().manual_seed(1)
inputs, targets = torch.randn(64, 24, 8, generator=dice), torch.randn(64, 24, 1, generator=dice)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
checkpoint = flatout.Checkpoint("kept", every=5, model=model, optimizer=optimizer)
begun = checkpoint.resume()
if rank == 0:
    print("from", begun, os.environ["MASTER_PORT"], flush=True)
rows = slice(rank * 24 // size, (rank + 1) * 24 // size)
for number in range(begun, STEPS):
    x, y = inputs[number % 64, rows], targets[number % 64, rows]
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print("step", number + 1, f"{mean.item() / size:.5f}", flush=True)
    checkpoint.after_step()
    if number == 30 and rank == 1 and not os.path.exists("died"):
        open("died", "w").close()
        checkpoint.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(SLEEP)
checkpoint.close()
for _ in range(20):  # so that gloo's threads let go of the last tensors: pytorch/pytorch#190489
    dist.barrier()
    time.sleep(0.01)
dist.destroy_process_group()
"""


@pytest.mark.thorough
def test_ddp_of_its_own_is_warned_goes_on_and_is_started_again(
    tmp_path: Path, alone: dict[int, str]
) -> None:
    """Warned: 75 on both; started once more, killed, started again by itself; then at the end."""
    (tmp_path / "train.py").write_text(DDP)
    nodes = two_nodes(tmp_path, fork=False, script=("train.py", "40", "0.1"))
    until(lambda: "step 6 " in said(tmp_path))
    nodes[1].send_signal(signal.SIGUSR1)
    errors = ended(nodes, [75, 75])
    assert "ended first" not in "".join(errors)
    assert "started as torchrun would; the script itself divided the work" in errors[0]
    warned_at = max(resuming.losses(said(tmp_path)))
    assert 6 <= warned_at < 30

    nodes = two_nodes(tmp_path, "--restarts", "1", fork=False, script=("train.py", "40", "0"))
    errors = ended(nodes, [0, 0])
    named = f"rank 1 of 2 (node gpu-01) ended first: killed by SIGKILL, step {31 - warned_at}"
    assert named in errors[0]
    assert "all ranks are started again (restart 1)" in errors[0]
    begun = [line.split()[1:] for line in said(tmp_path).splitlines() if line.startswith("from")]
    assert [begin for begin, _ in begun] == ["0", str(warned_at), "30"]
    assert len({port for _, port in begun}) == 3
    losses = resuming.losses(said(tmp_path))
    assert losses.keys() == {*range(1, 41)}
    for step, loss in losses.items():
        assert float(loss) == pytest.approx(float(alone[step]), abs=2e-5)


def folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "train.py").write_text(text)
    return path


@pytest.mark.thorough
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_dropout_on_ranks_goes_on_to_the_last_digit(tmp_path: Path) -> None:
    """Two ranks on one machine, warned; on two nodes, warned; on one machine to the end."""
    whole = folder(tmp_path / "whole", resuming.program(dropout=0.3))
    ended([start(whole, *RANKS, "train.py", "40", "0")], [0])
    undisturbed = resuming.losses(said(whole))
    assert len(undisturbed) == 40
    own = folder(tmp_path / "code", resuming.program(dropout=0.3))
    first = start(own, *RANKS, "train.py", "40", "0.2")
    until(lambda: "step 6 " in said(own))
    first.send_signal(signal.SIGUSR1)
    ended([first], [75])
    saved_at = [max(resuming.losses(said(own)))]

    nodes = two_nodes(own, script=("train.py", "40", "0.2"))
    until(lambda: f"step {saved_at[0] + 4} " in said(own))
    nodes[1].send_signal(signal.SIGUSR1)
    ended(nodes, [75, 75])
    saved_at.append(max(resuming.losses(said(own))))
    shutil.copytree(own / "kept", tmp_path / "kept")

    errors = ended([start(own, *RANKS, "train.py", "40", "0")], [0])
    begun = [line for line in said(own).splitlines() if line.startswith("from")]
    assert begun == ["from 0", *(f"from {step}" for step in saved_at)]
    assert saved_at[1] < 36  # a part was trained by each of the three
    assert resuming.losses(said(own)) == undisturbed
    assert "(dropout) differ" not in "".join(errors)

    # Another number of ranks cannot draw the same numbers, and says so.
    alone = folder(tmp_path / "alone", resuming.program(dropout=0.3))
    shutil.copytree(tmp_path / "kept", alone / "kept")
    (error,) = ended([start(alone, "train.py", "40", "0")], [0])
    assert error.count("by 2 ranks, and one process resumed from it") == 1
    losses = resuming.losses(said(alone))
    assert losses.keys() == {*range(saved_at[1] + 1, 41)}
    assert losses != {step: undisturbed[step] for step in losses}
