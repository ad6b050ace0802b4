"""A launch on a real API server with real controllers, whose nodes run the pods' own commands."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

import cluster_jobs
import kubed
from running.nodes import resuming
from running.nodes.two_nodes import ended, said, start

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
IMAGE = ("--image", "registry/none:1", "--yes")
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "kept"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}


class Lines:
    """What a launch that is followed prints."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.seen: list[str] = []

    def until(self, words: str) -> None:
        """Read up to the line that has these words."""
        for line in self._stream:
            self.seen.append(line.rstrip("\n"))
            if words in line:
                return
        raise AssertionError(f"{words!r} is not in {self.seen}")


class There:
    """The cluster, the code folder, and an environment in which kubectl knows the cluster."""

    def __init__(self, cluster: kubed.Cluster, folder: Path, env: dict[str, str]) -> None:
        self.cluster, self.folder, self.env = cluster, folder, env

    def launch(self, *words: str) -> subprocess.CompletedProcess[str]:
        return cluster_jobs.run("kubernetes", *IMAGE, *words, cwd=self.folder, env=self.env)

    @contextmanager
    def following(self, *words: str) -> Iterator[tuple[subprocess.Popen[str], Lines]]:
        """`flatout launch` while it follows the job."""
        with subprocess.Popen(
            cluster_jobs.command("kubernetes", *IMAGE, *words),
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            yield process, Lines(process.stdout)

    def job(self, name: str) -> str:
        """The job of the launch with this name."""
        [file] = self.folder.glob(f".flatout/launch/{name}-*/job.json")
        return str(json.loads(file.read_text())["id"])

    def wait(self, true: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 90
        while not (found := true()):
            assert time.monotonic() < deadline, self.cluster.kubectl(
                "get", "jobs,pods", "-o", "wide"
            )
            time.sleep(0.2)
        return found

    def pods(self, name: str) -> list[dict[str, Any]]:
        labels = (
            pod for pod in self.cluster.pods() if pod["metadata"]["labels"]["job-name"] == name
        )
        return sorted(labels, key=lambda pod: str(pod["metadata"]["name"]))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    if why := kubed.missing():
        pytest.skip(f"no cluster of Kubernetes can be started: {why}")
    base = tmp_path_factory.mktemp("kubernetes")
    folder, shim = (
        cluster_jobs.folder(base / "code"),
        cluster_jobs.shim(base / "bin", "flatout", "python"),
    )
    env = cluster_jobs.environment()
    env["PATH"] = f"{shim}:{env['PATH']}"
    (base / "cluster").mkdir()
    with kubed.started(base / "cluster", 2, env) as cluster:
        yield There(cluster, folder, {**env, "KUBECONFIG": str(cluster.kubeconfig)})


def test_two_pods_train_as_one_process_does(there: There) -> None:
    done = there.launch("--nodes", "2", "--ranks", "1", "--name", "equal", "train.py", "6", "0")
    assert done.returncode == 0, done.stderr
    assert cluster_jobs.losses(done.stdout) == pytest.approx(
        cluster_jobs.alone(there.folder, 6), rel=1e-5
    )
    assert "[node 0] step 6" in done.stdout
    name = there.job("equal")
    # What belongs to it goes with it.
    assert there.launch("--cancel", name).returncode == 0
    things = f"job/{name}", f"service/{name}", f"configmap/{name}-code"
    there.wait(
        lambda: not there.cluster.kubectl("get", *things, "--ignore-not-found", "-o", "name")
    )


@pytest.mark.thorough
def test_an_error_ends_the_job_and_is_named(there: There) -> None:
    words = ("--nodes", "2", "--ranks", "1", "--name", "fails", "train.py", "20", "0", "fail")
    done = there.launch(*words)
    assert done.returncode == 1
    assert "ValueError: on purpose" in done.stderr
    [name] = there.cluster.kubectl("get", "jobs", "-o", "name").split()
    assert len(there.pods(name.removeprefix("job.batch/"))) == 2  # none was started again


@pytest.mark.thorough
def test_pods_start_again_where_one_is_taken_away(there: There) -> None:
    words = ("--nodes", "2", "--ranks", "1", "--name", "taken", "train.py", "60", "0.2")
    with there.following(*words) as (process, lines):
        lines.until("step 3 ")
        name = there.job("taken")
        first = {pod["metadata"]["uid"] for pod in there.pods(name)}
        there.cluster.evict(there.pods(name)[1])
        lines.until("step 1 ")  # both pods start again: each needs the other
        now = {pod["metadata"]["uid"] for pod in there.pods(name)}
        assert len(now - first) == 2
        assert there.launch("--cancel", name).returncode == 0
        rest, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "was cancelled" in errors, rest
    there.wait(lambda: not there.pods(name))


@pytest.mark.thorough
def test_training_goes_on_to_the_last_digit_where_pods_are_taken_away(
    there: There, tmp_path: Path
) -> None:
    """First a pod is evicted; then the machine of the other one, node 0, is lost at once."""
    text = resuming.program(5, dropout=0.3)
    (tmp_path / "train.py").write_text(text)
    words = ("--no-trial", "--nodes", "auto", "--ranks", "2", "train.py", "40", "0")
    ended([start(tmp_path, *words)], [0])
    undisturbed = resuming.losses(said(tmp_path))
    assert len(undisturbed) == 40

    (there.folder / "going.py").write_text(text.replace('"kept"', '"/flatout/kept"'))
    there.cluster.call("POST", "/api/v1/namespaces/default/persistentvolumeclaims", CLAIM)
    words = ("--nodes", "2", "--ranks", "1", "--name", "going", "--set", "claim=kept:/flatout/kept")
    with there.following(*words, "going.py", "40", "0.3") as (process, lines):
        lines.until("step 7 ")
        name = there.job("going")
        there.cluster.evict(there.pods(name)[1])
        lines.until("from")
        lines.until("step 22 ")
        there.cluster.lose(there.pods(name)[0])
        rest, errors = process.communicate(timeout=150)
    assert process.returncode == 0, errors
    printed = [line.removeprefix("[node 0] ") for line in [*lines.seen, *rest.splitlines()]]
    begun = [int(line.split()[1]) for line in printed if line.startswith("from")]
    assert len(begun) == 3
    assert 7 <= begun[1] < begun[2] == begun[2] // 5 * 5
    assert resuming.losses("\n".join(printed)) == undisturbed


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "context=somebody"), "you may not create jobs.batch in namespace default"),
        (("--set", "context=stranger"), "you are not logged in"),
        (("--set", "context=none-such"), "kubectl has no such context"),
        (("--set", "namespace=none-such"), 'namespaces "none-such" not found'),
        (("--set", "claim=none-such:/data"), "there is no persistentvolumeclaims none-such"),
        (("--set", "kind=trainjob"), "the cluster has no Kubeflow Trainer"),
        (("--set", "kind=jobset"), "the cluster has no JobSet"),
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
