"""`flatout run --nodes` as processes: the ranks are stand-ins, the nodes are folders."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from flatout_agent import wire
from running.nodes.several_nodes import Nodes
from running.ranks.rank_programs import program
from running.stand_in import DRIVER
from running.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="stacks on a signal"),
]
WAITING = program(
    """
train(1, 4)
open(f"trained-{rank}", "w").close()
time.sleep(600)
"""
)

QUICK_DRIVER = DRIVER.replace(
    "from flatout.__main__",
    "import functools, glob, os\n"
    "from flatout.running.ranks import started\n"
    "from flatout.running.ranks.hang import HangSearch\n"
    "started.RankLimits = functools.partial(started.RankLimits, still_s=1.0, look_s=0.5)\n"
    "look = HangSearch.look\n"
    "def looks_then(*given):\n"
    "    there = glob.glob(os.environ['MET'] + '/stands-*')\n"
    "    return look(*given) if len(there) == int(os.environ['FLATOUT_NODES']) else None\n"
    "HangSearch.look = looks_then\n"
    "from flatout.__main__",
)
"""With limits that a test can wait for, once each rank has come to where it stands."""


@pytest.fixture
def nodes(tmp_path: Path, inject: Path) -> Nodes:
    return Nodes(tmp_path, inject)


def ended_first(text: str) -> list[str]:
    return [line for line in text.splitlines() if "ended first" in line or "is gone" in line]


def test_ranks_are_numbered_over_uneven_nodes_and_rank_0_alone_is_heard(
    tmp_path: Path, inject: Path
) -> None:
    nodes = Nodes(tmp_path, inject, (1, 2))
    nodes.start(
        program("""
own = {k: v for k, v in os.environ.items() if k.startswith("FLATOUT_")}
print(json.dumps([orders["ranks"], own, sys.stdin.read()]), flush=True)
train(1, 3)
open("saved", "w").close()
""")
    )
    first, second = nodes.ends()
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert (second.stdout, second.stderr) == ("", "")
    (other,) = nodes.flatouts[1].runs()
    texts = [first.stdout, (other / "rank1.log").read_text(), (other / "rank2.log").read_text()]
    told = [json.loads(text.splitlines()[0]) for text in texts]
    for rank, (orders, own, typed) in enumerate(told):
        assert orders["rank"] == rank == int(own["FLATOUT_RANK"])
        assert orders["size"] == 3 == int(own["FLATOUT_RANKS"])
        assert orders["host"] == "127.0.0.1"
        assert typed == ""
        assert "FLATOUT_JOB" not in own
        assert bool(orders["scratch"]) == (rank > 0)
    assert [own["FLATOUT_LOCAL_RANKS"] for _, own, _ in told] == ["1", "2", "2"]
    assert len({orders["address"] for orders, _, _ in told}) == 1
    assert len({orders["seed"] for orders, _, _ in told}) == 1
    assert nodes.left() == []


CUDA = "CUDA error: device-side assert triggered"


@pytest.mark.parametrize(
    ("rank", "then", "code", "told"),
    [
        (0, "sys.exit(7)", 7, "exit code 7"),
        (1, f"raise RuntimeError('{CUDA}')", 1, f"RuntimeError: {CUDA}"),
        (1, "os.kill(os.getpid(), signal.SIGKILL)", -9, "killed by SIGKILL"),
    ],
)
def test_the_rank_that_ended_first_is_told_on_node_0_and_all_nodes_end_with_it(
    nodes: Nodes, rank: int, then: str, code: int, told: str
) -> None:
    nodes.start(program(f"train(1, 4)\nif rank == {rank}:\n    {then}\ntrain(5, 9)\n"))
    first, second = nodes.ends()
    assert (first.returncode, second.returncode) == (code, code)
    (line,) = ended_first(first.stderr)
    assert f"rank {rank} of 2 (node gpu-0{rank}) ended first: {told}, step 4" in line
    assert second.stderr == ""
    if CUDA in told:
        assert "on node gpu-01: flatout explain" in first.stderr
        assert "flatout: what this means" in first.stderr
    assert nodes.left() == []


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_host_is_named_and_leaves_no_rank(nodes: Nodes, node: int) -> None:
    nodes.start(WAITING)
    until(lambda: nodes.ready("trained"))
    nodes.processes[node].kill()
    other = nodes.processes[1 - node]
    _, stderr = other.communicate(timeout=120)
    assert other.returncode == wire.LOST_EXIT
    (line,) = ended_first(stderr.decode())
    # Of its last step as much is known as its last sign of life has said.
    assert re.search(rf"node gpu-0{node} is gone: its connection broke(, step [1-4])?$", line)
    nodes.processes[node].communicate(timeout=120)
    until(lambda: not nodes.left())


def test_a_signal_to_one_node_ends_all_in_order(nodes: Nodes) -> None:
    nodes.start(WAITING)
    until(lambda: nodes.ready("trained"))
    nodes.processes[1].send_signal(signal.SIGTERM)
    first, second = nodes.ends()
    assert (first.returncode, second.returncode) == (-15, -15)
    assert ended_first(first.stderr + second.stderr) == []
    assert nodes.left() == []


def test_a_node_that_never_comes_is_told_after_the_limit(nodes: Nodes) -> None:
    nodes.start(WAITING, "--nodes-wait", "1s", only=(0,))
    (first,) = nodes.ends()
    assert first.returncode == 1
    assert "node 1 has not come within 1 s; 1 of 2 nodes are there" in first.stderr
    assert not nodes.flatouts[0].runs()


HANGS = """
def stands():
    open(f"{folder}/stands-{rank}", "w").close()

train(1, 5)
if rank == size - 1:
    stands()
    time.sleep(600)
"""
AHEAD = """
if rank == 1:  # it waits where nobody sees it, as for a GPU
    pulse.step(6, time.perf_counter())
    stands()
    time.sleep(600)
"""
GOES_ON = "stands()\ntrain(6, 9)\n"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        pytest.param((1, 1, 1), HANGS + AHEAD + GOES_ON, id="of two the one behind"),
        pytest.param((1, 1), HANGS + GOES_ON, id="the other waits"),
        pytest.param((1, 1), HANGS + AHEAD.replace("1:", "0:"), id="the other is ahead"),
    ],
)
def test_a_hang_is_named_by_its_node(
    tmp_path: Path, inject: Path, ranks: tuple[int, ...], text: str
) -> None:
    """Its node sees only that its rank stands still; the other ones know that they wait."""
    nodes = Nodes(tmp_path, inject, ranks)
    for flatout in nodes.flatouts:
        flatout.prefix[2] = QUICK_DRIVER
    nodes.start(program(text))
    ends = nodes.ends()
    assert [end.returncode for end in ends] == [1] * len(ranks)
    last = len(ranks) - 1
    named = f"rank {last} of {last + 1} (node gpu-0{last}) hangs: it has taken no step for"
    assert named in ends[0].stderr
    assert nodes.left() == []
