"""A job followed: of an engine that is a list of what happens."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from flatout.launching import engines, following
from flatout.nouns.errors import UserError
from flatout.nouns.launched import JobState, LaunchEngine, LogLine, SubmittedJob

JOB = SubmittedJob("made", "7", "train", "/nowhere", 0.0, 2)
QUEUED, RUNNING, ENDED = (
    JobState("queued", "no nodes are free"),
    JobState("running"),
    JobState("ended"),
)


class Clock:
    """Time that passes only where somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(following.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(following.time, "sleep", self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds


def engine(
    monkeypatch: pytest.MonkeyPatch,
    states: list[JobState],
    lines: list[tuple[str, str] | None],
    **more: object,
) -> list[JobState]:
    """One whose job has these states, one for each question; those that were not asked for."""
    left = [*states]

    def logs(job: SubmittedJob) -> Iterator[LogLine | None]:
        for line in lines:
            yield LogLine(*line) if line is not None else None
        while not about.logs_end:
            yield None

    about = LaunchEngine("Made", "0", "", False, logs_end=bool(more.pop("logs_end", False)))
    made = SimpleNamespace(
        ENGINE=about,
        state=lambda job: left.pop(0) if len(left) > 1 else left[0],
        logs=logs,
        **more,
    )
    monkeypatch.setattr(engines, "load", lambda name: made)
    return left


def test_states_where_they_change_and_all_lines_before_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    lines = [("node 0", "a"), None, ("node 1", "b"), None, None, ("node 0", "late")]
    engine(monkeypatch, [QUEUED, QUEUED, RUNNING, RUNNING, ENDED], lines)
    seen = list(following.events(JOB, clock.wait))
    assert [event for event in seen if isinstance(event, JobState)] == [QUEUED, RUNNING, ENDED]
    assert [event.text for event in seen if isinstance(event, LogLine)] == ["a", "b", "late"]
    assert seen[-1] == ENDED


def test_an_engine_is_not_asked_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    left = engine(monkeypatch, [RUNNING] * 1000, [])

    def wait(seconds: float) -> None:
        clock.wait(seconds)
        if clock.now > 600:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(following.events(JOB, wait))
    assert 100 < 1000 - len(left) < 150  # every five seconds


def test_an_engine_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    engine(monkeypatch, [JobState("unknown", "no route to it")], [])
    with pytest.raises(UserError, match="has not answered for 15 minutes: no route to it"):
        list(following.events(JOB, clock.wait))


def test_a_log_that_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    engine(monkeypatch, [ENDED], [("node 0", "a")], logs_end=True)
    assert [*following.events(JOB, clock.wait)] == [LogLine("node 0", "a"), ENDED]
    assert clock.now == 0.0


RANK_1 = (
    "flatout: error: rank 1 of 2 (node b) ended first: ValueError: bad label, step 4, train.py:9"
)


def test_the_rank_that_flatout_named_is_read_where_its_log_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Clock(monkeypatch)
    read: list[tuple[str, str]] = []

    def there(job: SubmittedJob, node: str, path: str) -> str:
        read.append((node, path))
        return "step 3\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB\n"

    lines: list[tuple[str, str] | None] = [
        ("node 1", "RuntimeError: Connection closed by peer"),
        ("node 0", RANK_1),
        ("node 0", "flatout: next: on node b: flatout explain runs/1/rank1.log"),
    ]
    engine(monkeypatch, [ENDED], lines, read=there)
    failure = following.first_failure(JOB, "node 1")
    assert failure is not None
    assert read == [("b", "runs/1/rank1.log")]
    assert failure.error == RANK_1.removeprefix("flatout: error: ")
    assert failure.tail[-1].startswith("torch.OutOfMemoryError")
    assert failure.explained is not None
    assert failure.explained.matches[0].id.startswith("cuda-oom")


@pytest.mark.parametrize(
    ("lines", "source", "error"),
    [
        ([("node 0", "flatout: error: node b is gone: it broke")], "node 0", "b is"),
        ([("node 0", "[W1127 socket.cpp:207] [c10d] The hostname of the client socket cannot be "
           "retrieved. err=-3"), ("node 1", "ValueError: bad")], "node 1", "ValueError: bad"),
        ([("slurm", "srun: error: node2: task 1: Exited with exit code 2"),
          ("node 1", "flatout: there is no script")], "node 1", "there is no script"),
    ],
)  # fmt: skip
def test_what_failed_first(
    monkeypatch: pytest.MonkeyPatch, lines: list[tuple[str, str] | None], source: str, error: str
) -> None:
    Clock(monkeypatch)
    engine(monkeypatch, [ENDED], lines)
    failure = following.first_failure(JOB, "node 1")
    assert failure is not None
    assert (failure.source, error in failure.error) == (source, True)
