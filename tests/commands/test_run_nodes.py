"""`flatout run --nodes` and `--restarts` with the real agent: equal losses, saved and gone on."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

import forked
from running.nodes import resuming
from running.nodes.networks import network
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


@pytest.mark.thorough
def test_a_killed_rank_is_started_again_on_all_nodes(tmp_path: Path, alone: dict[int, str]) -> None:
    dies = """if number == 20 and not os.path.exists("died") and os.environ["FLATOUT_RANK"] == "0":
        open("died", "w").close(); checkpoint.wait(); os.kill(os.getpid(), signal.SIGKILL)"""
    (tmp_path / "train.py").write_text(resuming.program(5, dies))
    errors = ended(two_nodes(tmp_path, "--restarts", "1", script=("train.py", *SHORT)), [0, 0])
    assert "ended first: killed by SIGKILL, step 21" in errors[0]
    assert "all ranks are started again (restart 1)" in errors[0]
    output = said(tmp_path)
    assert [line for line in output.splitlines() if line.startswith("from")] == [
        "from 0",
        "from 20",
    ]
    assert resuming.losses(output) == alone


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize("cut", [False, True])
def test_machines_with_addresses_of_their_own(
    tmp_path: Path, alone: dict[int, str], cut: bool
) -> None:
    (tmp_path / "train.py").write_text(resuming.program())
    with network() as cable:
        if cable is None:
            pytest.skip("needs root, iproute2 and network namespaces")
        script = ("train.py", "4000", "0.1") if cut else ("train.py", *SHORT)
        nodes = two_nodes(tmp_path, script=script, network=cable)
        if not cut:
            ended(nodes, [0, 0])
            assert resuming.losses(said(tmp_path)) == alone
            return
        until(lambda: "step 6 " in said(tmp_path))
        cable.cut()
        errors = ended(nodes, [79, 79])
    assert "node gpu-01 is gone: it has sent nothing for" in errors[0]
    assert "node gpu-00 is gone: it has sent nothing for" in errors[1]
