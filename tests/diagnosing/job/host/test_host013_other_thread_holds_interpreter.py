from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.host_time import HostKind, HostThread
from flatout.nouns.place import Place

CHECK = "other-thread-holds-interpreter"


def test_the_thread_and_its_line() -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    thread = HostThread("watcher", 0.8 * step_ms, Place("train.py", 7, "poll"))
    profile = sampled.profile(threads=(thread,), waited_ms=0.4 * step_ms)
    finding = made.only(CHECK, profile)
    assert (finding.code, finding.where) == ("HOST013", "train.py:7")
    assert '"watcher"' in finding.title
    assert made.saved_ms(finding, profile) == pytest.approx(0.36 * step_ms, rel=0.01)


def test_what_handing_over_more_often_relieved_is_part_of_the_loss() -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    thread = HostThread("watcher", 0.2 * step_ms, Place("train.py", 7, "poll"))
    profile = sampled.profile(threads=(thread,), waited_ms=0.1 * step_ms)
    host = dataclasses.replace(profile.host, step_ms=0.4 * step_ms)
    profile = dataclasses.replace(profile, host=host)
    finding = made.only(CHECK, profile)
    assert made.saved_ms(finding, profile) == pytest.approx(0.9 * 0.7 * step_ms, rel=0.01)
    assert "handed the interpreter over" in finding.evidence


@pytest.mark.parametrize(("cpu", "waited"), [(0.05, 0.4), (0.8, 0.01)])
def test_an_idle_thread_or_a_training_that_does_not_wait(cpu: float, waited: float) -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    thread = HostThread("watcher", cpu * step_ms, None, "threading")
    profile = sampled.profile(threads=(thread,), waited_ms=waited * step_ms)
    assert made.findings(CHECK, profile) == ()


def test_a_writer_is_told_with_the_calls_that_give_it_its_work() -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    thread = HostThread("Thread-1", 0.5 * step_ms, None, "tensorboard")
    calls = [
        sampled.line(
            number, HostKind.LIBRARY, 0.1 * step_ms, package="tensorboard", callee=f"{call}(...)"
        )
        for number, call in ((20, "writer.add_histogram"), (21, "writer.add_histogram"))
    ]
    profile = sampled.profile(*calls, threads=(thread,), waited_ms=0.2 * step_ms)
    assert made.findings(CHECK, profile) == ()
    finding = made.only("library-called-in-step", profile)
    assert finding.title.startswith("writing histograms in tensorboard")
    assert '"Thread-1"' in finding.evidence
    assert finding.where == "train.py:20"
    assert made.saved_ms(finding, profile) == pytest.approx(0.36 * step_ms, rel=0.01)
    other = sampled.profile(threads=(thread,), waited_ms=0.2 * step_ms)
    assert made.only(CHECK, other).where is None
