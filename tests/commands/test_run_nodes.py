"""`flatout run --nodes` and `--restarts` with the real agent: equal losses, saved and gone on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import flatout
import forked
from running import resuming
from running.networks import Network, network
from running.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals, /proc"),
]
SOURCES = str(Path(flatout.__file__).parents[1])
SHORT = ("40", "0")


def environ(**more: str) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("FLATOUT_", "SLURM_"))}
    return {**own, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1", **more}


def start(
    folder: Path, *words: str, before: list[str] | None = None, **more: str
) -> subprocess.Popen[str]:
    """`flatout run ... train.py`.

    before: words that begin the command; a fork would know nothing of them.
    """
    output = (folder / f"out-{more.get('FLATOUT_NODE', '0')}").open("a+")
    with output:
        return subprocess.Popen(
            [
                *(before or []),
                *(sys.executable, "-m", "flatout", "run", "--no-plan", "--no-trial"),
                *("--python", sys.executable if before else forked.python()),
                *words,
            ],
            cwd=folder,
            env=environ(**more),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )


def said(folder: Path) -> str:
    return (folder / "out-0").read_text()


def two_nodes(
    folder: Path,
    *words: str,
    script: tuple[str, ...] = SHORT,
    network: Network | None = None,
) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    host = network.addresses[0] if network is not None else "127.0.0.1"
    own = {"FLATOUT_NODES": "2", "FLATOUT_LEADER": f"{host}:{port}", "FLATOUT_JOB": "secret"}
    options = ("--nodes", "auto", "--ranks", "1", *words, "train.py", *script)
    started = []
    for index in (0, 1):
        before = network.inside(index) if network is not None else None
        names = {"FLATOUT_NODE": str(index), "FLATOUT_NODE_NAME": f"gpu-{index:02d}"}
        started.append(start(folder, *options, before=before, **names, **own))
    return started


def ended(processes: list[subprocess.Popen[str]], codes: list[int]) -> list[str]:
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == codes, errors
    return errors


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Losses of one process that was not disturbed."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "train.py").write_text(resuming.program())
    out, err = forked.start(["train.py", *SHORT], folder, environ()).communicate(timeout=240)
    losses = resuming.losses(out)
    assert len(losses) == 40, err
    return losses


def test_two_nodes_save_when_one_is_warned_and_one_machine_goes_on(
    tmp_path: Path, alone: dict[int, str]
) -> None:
    """Two nodes, warned: exit code 75; then two ranks, ended by SIGTERM; then one process."""
    (tmp_path / "train.py").write_text(resuming.program())
    nodes = two_nodes(tmp_path, script=("40", "0.1"))
    until(lambda: "step 6 " in said(tmp_path))
    nodes[1].send_signal(signal.SIGUSR1)
    errors = ended(nodes, [75, 75])
    assert "ended first" not in "".join(errors)
    warned_at = max(resuming.losses(said(tmp_path)))
    assert 6 <= warned_at < 40

    ranks = start(tmp_path, "--ranks", "2", "train.py", "40", "0.1")
    until(lambda: f"step {warned_at + 4} " in said(tmp_path))
    ranks.send_signal(signal.SIGTERM)
    (error,) = ended([ranks], [143])
    assert "ended first" not in error
    ended_at = max(resuming.losses(said(tmp_path)))
    assert warned_at + 4 <= ended_at < 40

    last = start(tmp_path, "--nodes", "1", "--ranks", "1", "train.py", *SHORT)
    ended([last], [0])
    output = said(tmp_path)
    assert [line for line in output.splitlines() if line.startswith("from")] == [
        "from 0",
        f"from {warned_at}",
        f"from {ended_at}",
    ]
    assert output.count("step ") == 40
    assert resuming.losses(output) == alone


def test_a_killed_rank_is_started_again_on_all_nodes(tmp_path: Path, alone: dict[int, str]) -> None:
    dies = """if number == 20 and not os.path.exists("died") and os.environ["FLATOUT_RANK"] == "0":
        open("died", "w").close(); checkpoint.wait(); os.kill(os.getpid(), signal.SIGKILL)"""
    (tmp_path / "train.py").write_text(resuming.program(5, dies))
    errors = ended(two_nodes(tmp_path, "--restarts", "1"), [0, 0])
    assert "ended first: killed by SIGKILL, step 21" in errors[0]
    assert "all ranks are started again (restart 1)" in errors[0]
    output = said(tmp_path)
    assert [line for line in output.splitlines() if line.startswith("from")] == [
        "from 0",
        "from 20",
    ]
    assert resuming.losses(output) == alone


@pytest.mark.parametrize("cut", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_machines_with_addresses_of_their_own(
    tmp_path: Path, alone: dict[int, str], cut: bool
) -> None:
    (tmp_path / "train.py").write_text(resuming.program())
    with network() as cable:
        if cable is None:
            pytest.skip("needs root, iproute2 and network namespaces")
        script = ("4000", "0.1") if cut else SHORT
        nodes = two_nodes(tmp_path, script=script, network=cable)
        if not cut:
            ended(nodes, [0, 0])
            assert resuming.losses(said(tmp_path)) == alone
            return
        until(lambda: "step 6 " in said(tmp_path))
        cable.cut()
        errors = ended(nodes, [1, 1])
    assert "node gpu-01 is gone: nothing was heard of it for" in errors[0]
    assert "node gpu-00 is gone: nothing was heard of it for" in errors[1]
