"""ssh, for real: two machines with sshd, as network namespaces where that is allowed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import flatout
import sshed
from launched import PROGRAM, LaunchCalls, losses, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.thorough,  # daemons, and several starts of torch: a quarter of a minute
    pytest.mark.flaky(reruns=1),  # daemons have time limits of their own
    pytest.mark.skipif(bool(sshed.missing()), reason=sshed.missing()),
]
SECRETS = (".env", "id_rsa", "credentials.json", "server.pem")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshed.SshMachines]:
    source = str(Path(flatout.__file__).parents[1])
    variables = {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    with sshed.machines(tmp_path_factory.mktemp("ssh"), variables) as made:
        yield made


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> LaunchCalls:
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(PROGRAM)
    for name in SECRETS:
        (folder / name).write_text("secret")
    return LaunchCalls(folder, {"OMP_NUM_THREADS": "1"})


@pytest.fixture
def words(machines: sshed.SshMachines) -> tuple[str, ...]:
    hosts = ("ssh", "--hosts", ",".join(sshed.HOSTS), "--set", f"config={machines.config}")
    return (*hosts, "--python", sys.executable, "--yes")


def no_orphans(machines: sshed.SshMachines) -> None:
    wait_for(lambda: not machines.pids(), lambda: f"orphans: {said(machines.pids())}")


def said(pids: list[int]) -> list[list[str]]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):  # it may end at any time
            found.append(psutil.Process(pid).cmdline())
    return found


def test_losses_of_two_machines_are_those_of_one_process(
    launch: LaunchCalls, machines: sshed.SshMachines, words: tuple[str, ...]
) -> None:
    expected = launch.alone("train.py", "20", "0", "alone")
    done = launch(*words, "--time", "5m", "--env", "NOTE=it's", "train.py", "20", "0", "kept")
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == pytest.approx(expected, abs=1e-5)
    assert len(expected) == 20
    assert f"not sent (secrets): {', '.join(sorted(SECRETS))}" in done.stderr
    for index, name in enumerate(sshed.HOSTS):
        (code,) = machines.home(name).glob(f".flatout/launch/train-*/node-{index}/code")
        assert not {path.name for path in code.iterdir()} & set(SECRETS)
        assert (code / "train.py").read_text() == PROGRAM
        assert code.stat().st_mode & 0o077 == 0
    no_orphans(machines)


def test_where_one_dies_all_end_and_it_is_named(
    launch: LaunchCalls, machines: sshed.SshMachines, words: tuple[str, ...]
) -> None:
    job = launch.begin(*words, "train.py", "5000", "0.1", "dying")
    try:
        job.until(r"\[node 0\] step 3 ")
        for pid in machines.pids("box2"):
            with suppress(psutil.NoSuchProcess, ProcessLookupError):  # ranks end with flatout
                if "run" in psutil.Process(pid).cmdline()[:4]:  # flatout itself, not its ranks
                    os.kill(pid, signal.SIGKILL)
        assert job.end() not in (0, 130)
    finally:
        job.close()
    assert "node box2 is gone" in job.said
    assert re.search(r"job \S+ has failed", job.said)
    no_orphans(machines)


def test_interrupted_it_goes_on_and_ends_when_asked(
    launch: LaunchCalls, machines: sshed.SshMachines, words: tuple[str, ...]
) -> None:
    job = launch.begin(*words, "--name", "long", "train.py", "5000", "0.1", "long")
    try:
        number = job.until(r"as job (\S+)")[1]
        job.until(r"\[node 0\] step 3 ")
        assert job.interrupt() == 130
    finally:
        job.close()
    assert f"flatout launch --follow {number}" in job.said
    # What followed it is gone, what trains is not.
    wait_for(
        lambda: not any("tail" in words for words in said(machines.pids())),
        lambda: f"{said(machines.pids())}",
    )
    assert machines.pids("box1")
    assert machines.pids("box2")
    done = launch("--cancel", "last")
    assert done.returncode == 0, done.stderr
    no_orphans(machines)
    followed = launch("--follow", "long")
    assert (followed.returncode, "was cancelled" in followed.stderr) == (1, True)
    assert "step 3 " in followed.stdout


@pytest.mark.parametrize(
    ("more", "message", "step"),
    [
        (("--hosts", "box1,nobox.invalid"), "there is no machine of that name", "spelling"),
        (("--python", "/no/python"), "there is no /no/python", "--python /path/to/python"),
        (("--gpus", "64"), "has ", "--ranks N"),
        (("--set", "leader=192.0.2.1"), "box2 does not reach box1 at 192.0.2.1", "firewall"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_sent(
    launch: LaunchCalls,
    words: tuple[str, ...],
    more: tuple[str, ...],
    message: str,
    step: str,
) -> None:
    done = launch(*words, *more, "train.py")
    assert done.returncode == 2
    assert message in done.stderr
    assert step in done.stderr.partition("next: ")[2]


def test_keys_that_do_not_fit_are_explained(
    launch: LaunchCalls, machines: sshed.SshMachines, words: tuple[str, ...], tmp_path: Path
) -> None:
    def refusal(config: str) -> str:
        path = tmp_path / "config"
        path.write_text(config)
        done = launch(*words, "--set", f"config={path}", "train.py")
        assert done.returncode == 2
        return done.stderr

    good = machines.config.read_text()
    known = str(machines.folder / "known_hosts")
    (tmp_path / "none").touch()
    assert "its host key is not known here" in refusal(good.replace(known, str(tmp_path / "none")))
    swapped = (machines.folder / "known_hosts").read_text().replace("box1", "box0")
    swapped = swapped.replace("box2", "box1").replace("box0", "box2")
    (tmp_path / "swapped").write_text(swapped)
    other = refusal(good.replace(known, str(tmp_path / "swapped")))
    assert "its host key has changed" in other
    assert "ssh-keygen -R box" in other
    new_key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")]
    subprocess.run(new_key, check=True)
    wrong = refusal(good.replace(str(machines.folder / "user_key"), str(tmp_path / "key")))
    assert "it accepts none of your keys" in wrong
    assert "ssh-copy-id box" in wrong
