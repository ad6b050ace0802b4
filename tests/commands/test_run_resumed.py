"""`flatout run` on ranks, interrupted and started again: the same losses to the last digit."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from running.nodes import resuming
from running.nodes.two_nodes import ended, said, start, two_nodes
from running.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals, /proc"),
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores"),
]
RANKS = ("--no-trial", "--nodes", "auto", "--ranks", "2")
SHORT = ("40", "0")
OWN_RANKS = """
import sys, time
import torch
import torch.distributed as dist
import flatout

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 1))
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
checkpoint = flatout.Checkpoint("kept", every=None, model=model, optimizer=optimizer)
begun = checkpoint.resume()
print("from", begun, flush=True)
for number in range(begun, int(sys.argv[1])):
    loss = model(torch.randn(12, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    means = [torch.zeros(()) for _ in range(2)]
    dist.all_gather(means, loss.detach())
    if rank == 0:
        print("step", number + 1, "/".join(mean.item().hex() for mean in means), flush=True)
    checkpoint.after_step()
    time.sleep(float(sys.argv[2]))
checkpoint.close()
dist.destroy_process_group()
"""


def folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "train.py").write_text(text)
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Losses of two ranks of a model with dropout."""
    own = folder(tmp_path_factory.mktemp("whole") / "code", resuming.program(dropout=0.3))
    ended([start(own, *RANKS, "train.py", *SHORT)], [0])
    losses = resuming.losses(said(own))
    assert len(losses) == 40
    return losses


@pytest.mark.thorough
def test_dropout_on_ranks_goes_on_to_the_last_digit(
    tmp_path: Path, undisturbed: dict[int, str]
) -> None:
    """Two ranks on one machine, warned; on two nodes, warned; on one machine to the end."""
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

    errors = ended([start(own, *RANKS, "train.py", *SHORT)], [0])
    begun = [line for line in said(own).splitlines() if line.startswith("from")]
    assert begun == ["from 0", *(f"from {step}" for step in saved_at)]
    assert saved_at[1] < 36  # a part was trained by each of the three
    assert resuming.losses(said(own)) == undisturbed
    assert "(dropout) differ" not in "".join(errors)

    # Another number of ranks cannot draw the same numbers, and says so.
    alone = folder(tmp_path / "alone", resuming.program(dropout=0.3))
    shutil.copytree(tmp_path / "kept", alone / "kept")
    (error,) = ended([start(alone, "train.py", *SHORT)], [0])
    assert error.count("by 2 ranks, and one process resumed from it") == 1
    losses = resuming.losses(said(alone))
    assert losses.keys() == {*range(saved_at[1] + 1, 41)}
    assert losses != {step: undisturbed[step] for step in losses}


@pytest.mark.thorough
def test_a_program_with_ranks_of_its_own_goes_on_to_the_last_digit(tmp_path: Path) -> None:
    whole, own = (folder(tmp_path / name, OWN_RANKS) for name in ("whole", "own"))
    words = ("--no-trial", "--ranks", "2", "train.py")
    ended([start(whole, *words, *SHORT)], [0])
    first = start(own, *words, "40", "0.1")
    until(lambda: "step 6 " in said(own))
    first.send_signal(signal.SIGTERM)
    ended([first], [143])
    ended([start(own, *words, *SHORT)], [0])
    begun = [line for line in said(own).splitlines() if line.startswith("from")]
    assert begun[0] == "from 0"
    assert begun[-1] != "from 0"
    losses = resuming.losses(said(own))
    assert len(losses) == 40
    assert losses == resuming.losses(said(whole))
