"""Slurm, for real: a controller and two nodes on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurmed
from launched import PROGRAM, LaunchCalls, losses, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.flaky(reruns=1),  # daemons have time limits of their own
    pytest.mark.skipif(bool(slurmed.missing()), reason=slurmed.missing()),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurmed.SlurmCluster]:
    with slurmed.cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(scope="module")
def launch(cluster: slurmed.SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> LaunchCalls:
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(PROGRAM)
    return LaunchCalls(folder, {**cluster.environment, "OMP_NUM_THREADS": "1"})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "message", "step"),
    [
        (("--partition", "mian"), "there is no partition 'mian'; there are main, closed", "main"),
        (("--partition", "closed"), "partition closed is not up", "--partition"),
        (("--nodes", "3"), "partition main has 2 nodes, not 3", "--nodes 2"),
        (("--time", "2h"), "partition main allows 1 h 00 min, not 2 h 00 min", "--time 60m"),
        (("--gpus", "3"), "no 1 nodes with 3 GPUs; they have 2", "--gpus 2"),
        (("--set", "mem=900G"), "no nodes have what is asked for", "sinfo"),
        (("--set", "no-such=1"), "unrecognized option '--no-such=1'", "--dry-run"),
        (("--hosts", "a"), "Slurm has no --hosts", "--help"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_submitted(
    launch: LaunchCalls,
    cluster: slurmed.SlurmCluster,
    words: tuple[str, ...],
    message: str,
    step: str,
) -> None:
    done = launch("slurm", *words, "--yes", "train.py", "1", "0", "no")
    assert done.returncode == 2
    assert message in done.stderr
    assert step in done.stderr.partition("next: ")[2]
    assert cluster.asked("squeue", "--noheader", "--states", "all") == ""
    assert not (launch.folder / ".flatout").exists()


@pytest.mark.thorough
def test_a_cluster_that_does_not_answer_is_told(launch: LaunchCalls, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=9\n")
    done = launch("slurm", "--yes", "train.py", SLURM_CONF=str(conf))
    assert done.returncode == 2
    assert "sinfo" in done.stderr
    assert "next: " in done.stderr


@pytest.mark.thorough
def test_all_gpus_of_a_node_come_with_all_its_cores(launch: LaunchCalls) -> None:
    done = launch("slurm", "--dry-run", "--gpus", "all", "--nodes", "2", "train.py", "--lr", "1")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for option in ("gpus-per-node=2", "cpus-per-task=2", "mem=0", "ntasks-per-node=1", "nodes=2"):
        assert f"#SBATCH --{option}" in lines
    assert any("run --nodes auto --gpus 2" in line and "--lr 1" in line for line in lines)
    assert "2 nodes, 4 GPUs" in done.stderr
    assert not (launch.folder / ".flatout").exists()


@pytest.mark.thorough
def test_losses_of_two_nodes_are_those_of_one_process_even_after_a_warning(
    launch: LaunchCalls, cluster: slurmed.SlurmCluster
) -> None:
    expected = launch.alone("train.py", "60", "0", "alone")
    job = launch.begin(
        "slurm", "--nodes", "2", "--time", "5m", "--yes", "train.py", "60", "0.1", "kept"
    )
    try:
        number = job.until(r"as job (\d+)")[1]
        job.until(r"\[node 0\] step 10 ")
        # What Slurm does before the time limit.
        cluster.asked("scancel", "--batch", "--signal=USR1", number)
        job.until(rf"job {number} waits: start 2; Slurm waits a while")
        # Slurm lets two minutes pass, of which there is nothing to see.
        cluster.asked("scontrol", "update", f"JobId={number}", "StartTime=now")
        assert job.end() == 0, job.said
    finally:
        job.close()
    resumed = int(job.until(r"\[node 0\] from ([1-9]\d*)")[1])
    assert 10 <= resumed < 60
    assert f"[node 0] step {resumed} " in job.said
    assert losses(job.said) == pytest.approx(expected, abs=1e-5)
    assert "exit code 75: queued again, for start 2" in job.said
    assert f"job {number} runs on node1, node2" in job.said
    assert f"job {number} has ended" in job.said
    # Long after, when Slurm may have forgotten it.
    assert (next((launch.folder / ".flatout/launch").glob("*/ended"))).read_text() == "0\n"


@pytest.mark.thorough
def test_the_rank_that_fails_first_is_named_with_its_log(launch: LaunchCalls) -> None:
    words = ("--nodes", "2", "--env", "FAILS=1", "--yes", "train.py", "60", "0", "failing")
    done = launch("slurm", "--json", *words)
    assert done.returncode == 1, done.stderr
    assert "rank 1 of 2 (node node2) ended first: ValueError: no such label" in done.stderr
    assert '"schema": "flatout.launch/1"' in done.stdout
    assert "ValueError: no such label" in done.stdout
    assert '"state": "failed"' in done.stdout


NUMBERED = """
import os
import torch
import torch.distributed as dist

rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
torch.manual_seed(0)
dice = torch.Generator().manual_seed(1)
inputs, targets = torch.randn(20, 24, 8, generator=dice), torch.randn(20, 24, 1, generator=dice)
model = torch.nn.Linear(8, 1)
if size > 1:
    dist.init_process_group("gloo", rank=rank, world_size=size)
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for number, (x, y) in enumerate(zip(inputs, targets), 1):
    loss = torch.nn.functional.mse_loss(model(x[rank::size]), y[rank::size])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach() / size
    if size > 1:
        dist.all_reduce(mean)
    if rank == 0:
        print("step", number, f"{mean.item():.7f}", flush=True)
"""


@pytest.mark.thorough
def test_a_script_that_knows_slurm_alone_trains_on_both_nodes(
    launch: LaunchCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    (launch.folder / "numbered.py").write_text(NUMBERED)
    done = launch("slurm", "--nodes", "2", "--yes", "numbered.py")
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "started as torchrun would, the script divides the work" in said
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    here = LaunchCalls(launch.folder, {"OMP_NUM_THREADS": "1"})
    assert losses(said) == pytest.approx(here.alone("numbered.py"), abs=1e-5)
    assert len(losses(said)) == 20


@pytest.mark.thorough
def test_interrupted_it_goes_on_and_ends_when_asked(
    launch: LaunchCalls, cluster: slurmed.SlurmCluster
) -> None:
    words = ("--nodes", "2", "--yes", "train.py", "5000", "0.1", "long")
    job = launch.begin("slurm", "--name", "long", *words)
    try:
        number = job.until(r"as job (\d+)")[1]
        job.until(r"\[node 0\] step 3 ")
        assert job.interrupt() == 130
    finally:
        job.close()
    assert f"flatout launch --follow {number}" in job.said
    assert f"flatout monitor --slurm {number}" in job.said
    assert f"{number}" in launch("--list").stdout
    assert cluster.asked("squeue", "--noheader", "--jobs", number, "--format", "%T") == "RUNNING"
    done = launch("--cancel", "long")
    assert (done.returncode, "is cancelled" in done.stderr) == (0, True)
    followed = launch("--follow", "long")
    assert followed.returncode == 1
    assert "was cancelled" in followed.stderr
    wait_for(lambda: not cluster.pids(), lambda: f"orphans: {cluster.pids()}")


@pytest.mark.thorough
def test_a_node_that_is_gone_is_named_and_leaves_nothing(
    launch: LaunchCalls, cluster: slurmed.SlurmCluster
) -> None:
    job = launch.begin("slurm", "--nodes", "2", "--yes", "train.py", "5000", "0.1", "gone")
    try:
        number = job.until(r"as job (\d+)")[1]
        job.until(r"\[node 0\] step 3 ")
        cluster.kill_node("node2")
        job.until(r"node node2 is gone")
        cluster.start_node("node2")
        cluster.asked("scancel", number)  # else it is queued again
        job.end()
    finally:
        job.close()
    wait_for(lambda: not cluster.pids(), lambda: f"orphans: {cluster.pids()}")


@pytest.mark.thorough
def test_the_python_of_the_script_is_named(launch: LaunchCalls) -> None:
    done = launch("slurm", "--dry-run", "train.py")
    assert f"{sys.executable} -m flatout run --nodes auto --python " in done.stdout
