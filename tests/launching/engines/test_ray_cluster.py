"""A launch on a real cluster of Ray: two raylets on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import cluster_jobs
import rayed

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class Cluster:
    """Two nodes, and the code folder."""

    def __init__(self, ray: rayed.RayCluster, folder: Path) -> None:
        self.ray, self.folder = ray, folder

    def words(self, *more: str) -> tuple[str, ...]:
        return ("ray", "--yes", "--set", f"address={self.ray.address}", *more)

    def launch(self, *more: str) -> subprocess.CompletedProcess[str]:
        return cluster_jobs.run(*self.words(*more), cwd=self.folder, env=self.ray.env)

    def ours(self) -> list[psutil.Process]:
        """Processes of jobs: flatout on a node, and the ranks."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "train.py" in words and "launch" not in words:
                found.append(process)
        return found

    def started(self, *more: str) -> str:
        """A long job that trains; its id."""
        words = ("--nodes", "2", "--ranks", "1", "--no-follow", *more, "train.py", "2000", "0.05")
        done = self.launch(*words)
        assert done.returncode == 0, done.stderr
        files = self.folder.glob(".flatout/launch/*/job.json")
        job = json.loads(max(files, key=os.path.getmtime).read_text())["id"]
        wait(lambda: "step 3 " in self.ray.get(f"/api/jobs/{job}/logs")["logs"])
        return str(job)


def wait(true: Callable[[], object], limit_s: float = 90) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := rayed.missing():
        pytest.skip(why)
    base = tmp_path_factory.mktemp("ray")
    shim = cluster_jobs.shim(base / "bin", "flatout")
    env = cluster_jobs.environment()
    # The cluster's own Python first: it runs the driver.
    env["PATH"] = f"{shim}:{Path(rayed.program() or '').parent}:{env['PATH']}"
    with rayed.started(env) as ray:
        yield Cluster(ray, cluster_jobs.folder(base / "code"))


def test_two_nodes_train_as_one_process_does(cluster: Cluster) -> None:
    done = cluster.launch("--nodes", "2", "--ranks", "1", "train.py", "6", "0")
    assert done.returncode == 0, done.stderr
    expected = cluster_jobs.alone(cluster.folder, 6)
    assert cluster_jobs.losses(done.stdout) == pytest.approx(expected, rel=1e-5)
    assert "2 ranks on 2 nodes" in done.stdout
    assert cluster.ours() == []


@pytest.mark.thorough
def test_an_error_is_named_and_restarts_are_counted(cluster: Cluster) -> None:
    words = ("--nodes", "2", "--ranks", "1", "--restarts", "1", "train.py", "20", "0", "fail")
    done = cluster.launch(*words)
    assert done.returncode == 1
    assert "ValueError: on purpose" in done.stderr
    assert done.stdout.count("step 1 loss") == 2
    assert "ray_job: start 2 of 2" in done.stdout
    assert cluster.ours() == []


@pytest.mark.thorough
def test_a_killed_worker_is_named_and_nothing_stays(cluster: Cluster) -> None:
    job = cluster.started("--name", "killed")
    worker = cluster.ray.workers("ray::run_node")[-1]
    worker.kill()
    done = cluster.launch("--follow", job)
    assert done.returncode == 1
    assert "ended first, exit code 1" in done.stdout
    assert "WorkerCrashedError" in done.stdout
    wait(lambda: not cluster.ours())


@pytest.mark.thorough
def test_a_stopped_job_ends_on_all_nodes(cluster: Cluster) -> None:
    job = cluster.started("--name", "stopped")
    done = cluster.launch("--cancel", job)
    assert done.returncode == 0, done.stderr
    wait(lambda: not cluster.ours())
    assert "was cancelled" in cluster.launch("--follow", job).stderr


@pytest.mark.thorough
def test_a_cluster_without_gpus_says_so(cluster: Cluster) -> None:
    done = cluster.launch("--gpus", "1", "train.py", "1", "0")
    assert done.returncode == 2
    assert "no node of the Ray cluster (" in done.stderr
