from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.finding import Severity
from flatout.nouns.host_time import HostKind

CHECK = "training-thread-waits"


@pytest.mark.parametrize(
    ("callee", "title", "cure"),
    [
        ("time.sleep(0.01)", "thread sleeps", "Remove the pause"),
        ("os.fsync(file.fileno())", "for files", "every 50 steps"),
        ("subprocess.run(...)", "for another process", "once"),
        ("connection.commit()", "for a database", "connection open"),
        ("results.wait_here", "waits:", "thread of its own"),
    ],
)
def test_for_what_it_waits(callee: str, title: str, cure: str) -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    profile = sampled.profile(
        sampled.line(50, HostKind.WAITING, 0.2 * step_ms, callee=callee, samples=40)
    )
    finding = made.only(CHECK, profile)
    assert (finding.code, finding.where) == ("HOST012", "train.py:50")
    assert title in finding.title
    assert cure in finding.cure.text


def test_where_waiting_cannot_be_told_from_running_nothing_is_said() -> None:
    profile = sampled.profile(sampled.line(50, HostKind.WAITING, 60.0))
    assert profile.host is not None
    blind = dataclasses.replace(profile, host=dataclasses.replace(profile.host, idle_known=False))
    assert made.findings(CHECK, blind) == ()


@pytest.mark.parametrize(
    ("package", "callee", "title", "cure"),
    [
        ("urllib", "self.opener.open(request)", "over the network (urllib)", "in the background"),
        ("requests", "session.post(url)", "over the network (requests)", "one request"),
        ("mlflow", "mlflow.log_metric(name, x)", "over the network (mlflow)", "queue"),
        ("", "client.recv(4096)", "over the network", "queue"),
        ("sqlite3", "rows.write(x)", "for a database", "connection open"),
        ("shutil", "shutil.copy(a, b)", "for files", "every 50 steps"),
    ],
)
def test_what_it_calls_tells_for_what(package: str, callee: str, title: str, cure: str) -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(
        50, HostKind.WAITING, 0.2 * step_ms, callee=callee, package=package, samples=40
    )
    finding = made.only(CHECK, sampled.profile(line))
    assert title in finding.title
    assert cure in finding.cure.text


def test_a_checkpoint_that_was_written_once_is_a_note() -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(
        50, HostKind.WAITING, 0.3 * step_ms, callee="os.fsync(f)", samples=80, steps=(4,)
    )
    finding = made.only(CHECK, sampled.profile(line))
    assert finding.severity is Severity.NOTE
    assert finding.title.endswith("in 1 of 20 steps")
