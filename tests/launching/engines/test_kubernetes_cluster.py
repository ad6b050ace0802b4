"""A launch on a real API server with real controllers; its pods wait, as there is no node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import kubed
from launched import PROGRAM, LaunchCalls, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class There:
    """The cluster, and calls in the code folder by which kubectl knows the cluster."""

    def __init__(self, cluster: kubed.Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self._calls = LaunchCalls(folder, {"KUBECONFIG": str(cluster.kubeconfig)})

    def launch(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._calls("kubernetes", "--image", "registry/none:1", "--yes", *words)

    def wait(self, words: tuple[str, ...], said: str) -> None:
        """Until kubectl says so."""
        found = lambda: self.cluster.kubectl("get", *words).strip()  # noqa: E731
        wait_for(lambda: found() == said, found)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    if why := kubed.missing():
        pytest.skip(f"no cluster of Kubernetes can be started: {why}")
    folder, own = (tmp_path_factory.mktemp(name) for name in ("code", "cluster"))
    (folder / "train.py").write_text(PROGRAM)
    with kubed.started(own) as cluster:
        yield There(cluster, folder)


def test_a_job_is_made_with_its_pods_and_goes_with_all_that_belongs_to_it(there: There) -> None:
    words = ("--nodes", "2", "--ranks", "1", "--name", "equal", "--no-follow")
    done = there.launch(*words, "train.py", "6", "0", "kept")
    assert done.returncode == 0, done.stderr
    [file] = there.folder.glob(".flatout/launch/equal-*/job.json")
    name = str(json.loads(file.read_text())["id"])
    pods = ("pods", "--selector", f"job-name={name}", "-o", "jsonpath={.items[*].status.phase}")
    there.wait(pods, "Pending Pending")
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
