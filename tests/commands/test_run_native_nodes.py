"""`flatout run --nodes` of programs that know ranks themselves, with the real agent."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ranked
from running.nodes import resuming
from running.nodes import two_nodes as nodes_here
from running.nodes.networks import network
from running.nodes.two_nodes import ended, environ, said
from running.waiting import until

# Each in a process of its own: frameworks read what is there when torch is imported.
start = functools.partial(nodes_here.start, fork=False)
two_nodes = functools.partial(nodes_here.two_nodes, fork=False)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals, /proc"),
]
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
checkpoint = flatout.Checkpoint("kept", every=KEEP_EVERY, model=model, optimizer=optimizer)
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
    DIES
    time.sleep(SLEEP)
checkpoint.close()
for _ in range(20):  # so that gloo's threads let go of the last tensors: pytorch/pytorch#190489
    dist.barrier()
    time.sleep(0.01)
dist.destroy_process_group()
"""


def ddp(keep_every: object = None, dies: str = "pass") -> str:
    return DDP.replace("KEEP_EVERY", repr(keep_every)).replace("DIES", dies)


def figures(output: str) -> list[float]:
    """The losses, from the first step on."""
    by_step = resuming.losses(output)
    return [float(by_step[step]) for step in range(1, len(by_step) + 1)]


@pytest.mark.thorough
def test_ddp_of_its_own_is_warned_goes_on_and_is_started_again(tmp_path: Path) -> None:
    """Warned: 75 on both; started once more, killed, started again by itself; then at the end."""
    kills = """if number == 30 and rank == 1 and not os.path.exists("died"):
        open("died", "w").close(); checkpoint.wait(); os.kill(os.getpid(), signal.SIGKILL)"""
    (tmp_path / "train.py").write_text(ddp(5, kills))
    nodes = two_nodes(tmp_path, script=("train.py", "40", "0.1"))
    until(lambda: "step 6 " in said(tmp_path))
    nodes[1].send_signal(signal.SIGUSR1)
    errors = ended(nodes, [75, 75])
    assert "ended first" not in "".join(errors)
    assert "started as torchrun would; the script itself divided the work" in errors[0]
    warned_at = max(resuming.losses(said(tmp_path)))
    assert 6 <= warned_at < 30

    nodes = two_nodes(tmp_path, "--restarts", "1", script=("train.py", "40", "0"))
    errors = ended(nodes, [0, 0])
    named = f"rank 1 of 2 (node gpu-01) ended first: killed by SIGKILL, step {31 - warned_at}"
    assert named in errors[0]
    assert "all ranks are started again (restart 1)" in errors[0]
    begun = [line.split()[1:] for line in said(tmp_path).splitlines() if line.startswith("from")]
    assert [begin for begin, _ in begun] == ["0", str(warned_at), "30"]
    assert len({port for _, port in begun}) == 3

    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "train.py").write_text(resuming.program())
    alone = subprocess.run(
        [sys.executable, "train.py", "40", "0"],
        cwd=tmp_path / "alone",
        env=environ(),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert figures(said(tmp_path)) == pytest.approx(figures(alone.stdout), abs=2e-5)
    assert len(figures(alone.stdout)) == 40


@pytest.mark.thorough
def test_accelerate_trains_on_the_batches_of_one_process(root: Path, tmp_path: Path) -> None:
    """Node 0 looks first; with addresses of their own where the system lets us make some."""
    words = [str(root / "tests" / "jobs" / "accelerate_loop.py"), "--steps", "20"]
    with network() as cable:
        nodes = two_nodes(tmp_path, "--", script=tuple(words), network=cable, trial=True)
        errors = ended(nodes, [0, 0])
    assert "to see whether the script divides its work itself" in errors[0]
    assert "started as torchrun would, Accelerate divides the work" in errors[0]
    assert errors[1] == ""
    (tmp_path / "alone").mkdir()
    alone = ranked.run(tmp_path / "alone", words, 1)
    expected = ranked.losses(alone.outputs[0])
    assert len(expected) == 20
    assert ranked.losses(said(tmp_path)) == pytest.approx(expected, rel=1e-4)
    assert (tmp_path / "out-1").read_text() == ""


@pytest.mark.thorough
def test_a_batch_that_ranks_cannot_divide_is_cut_into_rows_as_before(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        """
import torch
from accelerate import Accelerator
torch.manual_seed(0)
accelerator = Accelerator()
data = torch.utils.data.TensorDataset(torch.randn(45, 4))
loader = torch.utils.data.DataLoader(data, batch_size=5, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (x,) in loader:
    loss = model(x).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    print(accelerator.num_processes, loss.item())
"""
    )
    errors = ended(two_nodes(tmp_path, script=("train.py",), trial=True), [0, 0])
    assert "not started as torchrun would: 2 ranks cannot divide a batch of 5" in errors[0]
    assert [line.split()[0] for line in said(tmp_path).splitlines()] == ["1"] * 9


@pytest.mark.thorough
def test_torchrun_starts_its_ranks_again_where_that_is_asked(tmp_path: Path) -> None:
    kills = """if number == 9 and rank == 1 and not os.path.exists("died"):
        open("died", "w").close(); os.kill(os.getpid(), signal.SIGKILL)"""
    (tmp_path / "train.py").write_text(ddp(5, kills))
    torchrun = ("torchrun", "--nproc-per-node", "2", "--max-restarts", "1")
    command = ("-m", "torch.distributed.run", *torchrun[1:], "train.py", "12", "0")
    done = start(tmp_path, "--", sys.executable, *command)
    ended([done], [0])
    begun = [line.split()[1] for line in said(tmp_path).splitlines() if line.startswith("from")]
    assert begun == ["0", "5"]
    assert len(figures(said(tmp_path))) == 12
