"""Checkpoints of the ranks of `flatout run --ranks`, whose group stays unseen by torch."""

import pytest
import torch

from flatout_agent.ranks import agreeing
from flatout_train.checkpoint.checkpoint import Checkpoint
from flatout_train.checkpoint.ranks import CheckpointRanks
from flatout_train.errors import CheckpointError


@pytest.mark.parametrize(("other", "alike"), [(20, True), (15, False), (0, False)])
def test_ranks_that_see_other_checkpoints_are_told_so(monkeypatch, other, alike):
    """Two machines, each with a folder of its own."""

    def maxima():
        def start(note):
            torch.maximum(note, torch.tensor([other, -other]), out=note)
            return lambda: None

        return start

    monkeypatch.setattr(agreeing, "maxima", maxima)
    ranks = CheckpointRanks()
    if alike:
        ranks.check_alike(20, "kept")
        return
    with pytest.raises(CheckpointError, match=rf"newest is of step 20 for one and of step {other}"):
        ranks.check_alike(20, "kept")


def test_only_rank_0_writes(monkeypatch, tmp_path):
    model = torch.nn.Linear(2, 2)
    for rank, names in ((1, []), (0, ["step-00000001"])):
        monkeypatch.setattr(agreeing, "rank", lambda rank=rank: rank)
        with Checkpoint(tmp_path, every=1, model=model) as checkpoint:
            checkpoint.after_step()
            checkpoint.wait()
        assert sorted(path.name for path in tmp_path.iterdir()) == names
