"""A launch on a real API server with real controllers; its pods wait, as there is no node."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cluster_jobs
import kubed

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
IMAGE = ("--image", "registry/none:1", "--yes")


class There:
    """The cluster, the code folder, and an environment in which kubectl knows the cluster."""

    def __init__(self, cluster: kubed.Cluster, folder: Path, env: dict[str, str]) -> None:
        self.cluster, self.folder, self.env = cluster, folder, env

    def launch(self, *words: str) -> subprocess.CompletedProcess[str]:
        return cluster_jobs.run("kubernetes", *IMAGE, *words, cwd=self.folder, env=self.env)

    def wait(self, words: tuple[str, ...], said: str) -> None:
        """Until kubectl says so."""
        deadline = time.monotonic() + 90
        while (found := self.cluster.kubectl("get", *words).strip()) != said:
            assert time.monotonic() < deadline, found
            time.sleep(0.2)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    if why := kubed.missing():
        pytest.skip(f"no cluster of Kubernetes can be started: {why}")
    base = tmp_path_factory.mktemp("kubernetes")
    folder = cluster_jobs.folder(base / "code")
    (base / "cluster").mkdir()
    with kubed.started(base / "cluster") as cluster:
        env = cluster_jobs.environment(KUBECONFIG=str(cluster.kubeconfig))
        yield There(cluster, folder, env)


def test_a_job_is_made_with_its_pods_and_goes_with_all_that_belongs_to_it(there: There) -> None:
    words = ("--nodes", "2", "--ranks", "1", "--name", "equal", "--no-follow", "train.py", "6", "0")
    done = there.launch(*words)
    assert done.returncode == 0, done.stderr
    [file] = there.folder.glob(".flatout/launch/equal-*/job.json")
    name = str(json.loads(file.read_text())["id"])
    pods = ("pods", "--selector", f"job-name={name}", "-o", "jsonpath={.items[*].status.phase}")
    there.wait(pods, "Pending Pending")
    assert "queued" in there.launch("--list").stdout
    assert there.launch("--cancel", name).returncode == 0
    things = f"job/{name}", f"service/{name}", f"configmap/{name}-code"
    there.wait((*things, "--ignore-not-found", "-o", "name"), "")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "context=somebody"), "you may not create jobs.batch in namespace default"),
        (("--set", "context=stranger"), "you are not logged in"),
        (("--set", "context=none-such"), "kubectl has no such context"),
        (("--set", "namespace=none-such"), 'namespaces "none-such" not found'),
        (("--set", "claim=none-such:/data"), "there is no persistentvolumeclaims none-such"),
        (("--gpus", "all"), "no node of the cluster has GPUs now"),
        (("--set", "memory=lots"), "quantities must match the regular expression"),
        (("--set", "node-selector=a/b/c=d"), "Kubernetes rejects the job"),
    ],
)
def test_objections_come_before_anything_is_created(
    there: There, words: tuple[str, ...], message: str
) -> None:
    done = there.launch(*words, "--name", "refused", "train.py", "1", "0")
    assert done.returncode == 2
    assert message in done.stderr
    assert not [*there.folder.glob(".flatout/launch/refused-*")]
    assert "refused" not in there.cluster.kubectl("get", "jobs,configmaps", "-o", "name")
