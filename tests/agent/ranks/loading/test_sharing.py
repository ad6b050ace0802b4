"""What goes wrong on one rank alone, while the loading is shared: nothing waits for it for ever."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import ranked
from flatout_agent import wire
from flatout_agent.ranks.loading.sharing import OTHER_RANK

pytestmark = pytest.mark.slow

START = """
import os, time, torch
from torch.utils.data import DataLoader, Dataset
from flatout_agent.ranks.loading import plans
plans.MARGIN = plans.STILL = 0.0

class Rows(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        time.sleep(0.001)
        if index == 117:  # one of the last rank's rows of its batch
            bad()
        return torch.full((2,), index)

def read(**settings):
    for number, batch in enumerate(DataLoader(Rows(), batch_size=8, **settings)):
        print("batch", number, int(batch.sum()), flush=True)

def bad():
"""
READING = "reading a part of a batch failed: {}"
ENDS_S = 60.0
"""A rank that waits for another until its limit of time would take longer."""


def run(folder: Path, program: str) -> ranked.Ranked:
    script = folder / "train.py"
    script.write_text(START + program)
    began = time.monotonic()
    done = ranked.run(folder, [str(script)], 2, 120.0, fork=False)
    assert time.monotonic() - began < ENDS_S
    return done


@pytest.mark.parametrize("settings", ["", "num_workers=2"])
def test_an_error_on_one_ranks_rows_is_the_programs_own(settings: str, tmp_path: Path) -> None:
    done = run(tmp_path, f"    raise ValueError('no row 117')\nread({settings})\n")
    assert done.codes == (1, 1)
    for error in done.errors:
        assert "ValueError: no row 117" in error
        assert "flatout" not in error.splitlines()[-1]
    assert not done.faults
    assert done.outputs[0] == done.outputs[1]
    assert done.outputs[0].count("batch") == 14
    (told,) = done.seen.loaders
    assert told.reason in (READING.format("ValueError: no row 117"), OTHER_RANK)
    assert told.batches > 0


def test_a_worker_that_dies_on_one_rank(tmp_path: Path) -> None:
    program = "    if own_rank == 1:\n        os._exit(3)\n"
    program += "own_rank = int(os.environ['FLATOUT_RANK'])\nread(num_workers=1)\n"
    done = run(tmp_path, program)
    assert done.codes == (wire.LOST_EXIT, 1)
    # Whichever the loader meets first: the end of its worker, or of the pipe to it.
    words = ("exited unexpectedly", "Connection reset by peer", "EOFError", "Broken pipe")
    assert any(word in done.errors[1] for word in words), done.errors[1]
    assert done.errors[0] == ""


def test_a_rank_that_dies_while_the_other_waits_for_its_rows(tmp_path: Path) -> None:
    program = "    if os.environ['FLATOUT_RANK'] == '1':\n        os._exit(9)\nread()\n"
    done = run(tmp_path, program)
    assert done.codes == (wire.LOST_EXIT, 9)


def test_other_rows_on_each_rank_are_refused(tmp_path: Path) -> None:
    """A sampler that draws from the system, but not before the loading is shared."""
    program = """    pass
class Drifting(torch.utils.data.Sampler):
    def __iter__(self):
        for at in range(160):
            yield at if at < 100 else (at + int(os.environ["FLATOUT_RANK"])) % 160
    def __len__(self):
        return 160
read(sampler=Drifting())
"""
    done = run(tmp_path, program)
    assert done.codes == (wire.REFUSED_EXIT, wire.REFUSED_EXIT)
    assert "chosen other rows" in done.refused[0].reason
    assert done.refused[0].next_step
