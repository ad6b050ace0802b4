"""What may be well when it is started again, and what would only fail again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flatout.nouns.ranks import RankEnding, RankFailure
from flatout.running.one.command import Command
from flatout.running.ranks.layout import RankLayout
from flatout.running.ranks.restarting import LoneRank, Restarts, may_help
from flatout_agent import wire
from running.ranks.rank_programs import program
from running.stand_in import Flatout


def failure(
    ending: RankEnding = "error", code: int = 1, error: str = "", step: int | None = 7
) -> RankFailure:
    return RankFailure(0, 2, ending, code, error, step)


@pytest.mark.parametrize(
    "ended",
    [
        failure(code=-9, error="killed by SIGKILL"),
        failure(code=137, error="Killed (exit code 137)"),
        failure(code=-6, error="killed by SIGABRT"),
        failure("gone", error="its connection broke"),
        failure("hang", error="it has taken no step for 31 s"),
        failure(code=wire.LOST_EXIT),
        failure(error="torch.distributed.DistBackendError: NCCL error in: ..., unhandled"),
        failure(error="RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection reset by peer"),
        failure(error="OSError: [Errno 116] Stale file handle: '/data/shard-3'"),
        failure(error="RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ],
)
def test_what_came_from_outside_is_started_again(ended: RankFailure) -> None:
    assert may_help(ended)


@pytest.mark.parametrize(
    "ended",
    [
        failure(error="ValueError: no such label"),
        failure(error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
        failure(code=3, error="exit code 3"),
        failure("early", 1, "it ended normally while the others still trained"),
        failure(code=-9, error="killed by SIGKILL", step=None),
        failure("gone", error="its connection broke", step=None),
    ],
)
def test_what_would_come_again_is_not(ended: RankFailure) -> None:
    assert not may_help(ended)


def test_it_is_started_again_so_often_and_told_each_time() -> None:
    def lone() -> LoneRank:
        made = LoneRank(Command(("true",), None, "python", ("true",)), RankLayout(1, 0))
        made.failure = failure(code=-9)
        return made

    told: list[int] = []
    restarts = Restarts(2, lone, told.append)
    assert [restarts.after(lone()) is not None for _ in range(4)] == [True, True, False, False]
    assert told == [1, 2]
    restarts = Restarts(2, lone, told.append)
    fine = lone()
    fine.failure = None
    assert restarts.after(fine) is None


KILLED_ONCE = """
import os, signal, sys
sys.path.insert(0, {sources!r})
import json
from flatout_agent.tell.pulse import Pulse
orders = json.load(open(os.environ["FLATOUT_ORDERS"]))
print(os.environ.get("FLATOUT_WARNING"), orders["ranks"], flush=True)
Pulse(orders["pulse"]).step({step}, 1.0)
if not os.path.exists("died"):
    open("died", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 1])
def test_one_process_is_as_it_was_written_and_may_be_started_again(
    flatout: Flatout, most: int
) -> None:
    import flatout_agent

    sources = str(Path(flatout_agent.__file__).parents[1])
    flatout.script(KILLED_ONCE.format(sources=sources, step=3))
    words = ("--nodes", "auto", "--ranks", "1", "--restarts", str(most), "--no-trial", "--no-plan")
    done = flatout.run("run", *words, "train.py")
    first = b"SIGUSR1 None\n"
    assert done.stdout == (first + first + b"done\n" if most else first)
    assert done.returncode == (0 if most else -9)
    assert (b"all ranks are started again (restart 1)" in done.stderr) == bool(most)
    assert b"ended first" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="stacks on a signal")
@pytest.mark.parametrize(
    ("then", "starts"), [("os.kill(os.getpid(), signal.SIGKILL)", 3), ("raise ValueError", 1)]
)
def test_ranks_of_one_machine_are_started_again_two_times(
    flatout: Flatout, then: str, starts: int
) -> None:
    flatout.script(
        program(f"""
print("begun", flush=True)
train(1, 3)
if rank == 1:
    {then}
train(4, 6)
""")
    )
    words = ("--ranks", "2", "--restarts", "2", "--no-trial", "--no-plan", "--json", "train.py")
    done = flatout.run("run", *words)
    assert len(flatout.runs()) == starts
    assert done.stderr.count(b"ended first") == starts
    assert done.stderr.count(b"all ranks are started again") == starts - 1
    assert done.returncode == (-9 if "kill" in then else 1)
    text = done.stdout.decode()
    document = json.loads(text[text.index("{") :])  # of the last start alone
    assert document["ranks"]["failure"]["rank"] == 1
