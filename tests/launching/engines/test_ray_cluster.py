"""A launch on a real cluster of Ray: two raylets on this machine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import psutil
import pytest

import rayed
from launched import PROGRAM, LaunchCalls, losses, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class Cluster:
    """Two nodes, and calls in the code folder."""

    def __init__(self, ray: rayed.RayCluster, calls: LaunchCalls) -> None:
        self.ray, self.calls = ray, calls

    def launch(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.calls("ray", "--yes", "--set", f"address={self.ray.address}", *more)

    def ours(self) -> list[psutil.Process]:
        """Processes of jobs: flatout on a node, and the ranks."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "train.py" in words and "launch" not in words:
                found.append(process)
        return found

    def left(self) -> str:
        return f"left: {self.ours()}"

    def started(self, name: str) -> str:
        """A long job that trains; its id."""
        words = ("--nodes", "2", "--ranks", "1", "--no-follow", "--name", name)
        done = self.launch(*words, "train.py", "2000", "0.05", name)
        assert done.returncode == 0, done.stderr
        files = self.calls.folder.glob(".flatout/launch/*/job.json")
        job = json.loads(max(files, key=os.path.getmtime).read_text())["id"]
        said = lambda: self.ray.get(f"/api/jobs/{job}/logs")["logs"]  # noqa: E731
        wait_for(lambda: "step 3 " in said(), said)
        return str(job)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := rayed.missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(PROGRAM)
    with rayed.started(rayed.environment(tmp_path_factory.mktemp("bin"))) as ray:
        yield Cluster(ray, LaunchCalls(folder, ray.env))


def test_two_nodes_train_as_one_process_does(cluster: Cluster) -> None:
    done = cluster.launch("--nodes", "2", "--ranks", "1", "train.py", "6", "0", "kept")
    assert done.returncode == 0, done.stderr
    expected = cluster.calls.alone("train.py", "6", "0", "alone")
    assert losses(done.stdout) == pytest.approx(expected, abs=1e-5)
    assert "2 ranks on 2 nodes" in done.stdout
    assert cluster.ours() == []


@pytest.mark.thorough
def test_an_error_is_named_and_restarts_are_counted(cluster: Cluster) -> None:
    words = ("--nodes", "2", "--ranks", "1", "--restarts", "1", "--env", "FAILS=0")
    done = cluster.launch(*words, "train.py", "20", "0", "fails")
    assert done.returncode == 1
    assert "ValueError: no such label" in done.stderr
    assert done.stdout.count("step 5 ") == 2
    assert "ray_job: start 2 of 2" in done.stdout
    assert cluster.ours() == []


@pytest.mark.thorough
def test_a_killed_worker_is_named_and_nothing_stays(cluster: Cluster) -> None:
    job = cluster.started("killed")
    worker = cluster.ray.workers("ray::run_node")[-1]
    worker.kill()
    done = cluster.launch("--follow", job)
    assert done.returncode == 1
    assert "ended first, exit code 1" in done.stdout
    assert "WorkerCrashedError" in done.stdout
    wait_for(lambda: not cluster.ours(), cluster.left)


@pytest.mark.thorough
def test_a_stopped_job_ends_on_all_nodes(cluster: Cluster) -> None:
    job = cluster.started("stopped")
    done = cluster.launch("--cancel", job)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not cluster.ours(), cluster.left)
    assert "was cancelled" in cluster.launch("--follow", job).stderr


@pytest.mark.thorough
def test_a_cluster_without_gpus_says_so(cluster: Cluster) -> None:
    done = cluster.launch("--gpus", "1", "train.py", "1", "0", "no")
    assert done.returncode == 2
    assert "no node of the Ray cluster (" in done.stderr
