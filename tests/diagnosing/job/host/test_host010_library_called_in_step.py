from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.host_time import HostKind

CHECK = "library-called-in-step"


@pytest.mark.parametrize(
    ("package", "title", "cure"),
    [
        ("sklearn", "computing metrics in sklearn", "once an epoch"),
        ("logging", "logging in logging", "Log less often"),
        ("copy", "copying objects in copy", "AveragedModel"),
        ("unheard_of", "a call in unheard_of", "every 50 steps"),
    ],
)
def test_the_line_the_package_and_its_cure(package: str, title: str, cure: str) -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    profile = sampled.profile(
        sampled.line(20, HostKind.LIBRARY, 0.4 * step_ms, package=package, callee="f1_score(y, p)")
    )
    finding = made.only(CHECK, profile)
    assert (finding.code, finding.where, finding.boost) == ("HOST010", "train.py:20", None)
    assert title in finding.title
    assert cure in finding.cure.text
    assert made.saved_ms(finding, profile) == pytest.approx(0.36 * step_ms, rel=0.01)


def test_a_framework_that_runs_the_loop_is_not_a_call_to_leave_out() -> None:
    profile = sampled.profile(sampled.line(20, HostKind.LIBRARY, 60.0, package="lightning"))
    assert made.findings(CHECK, profile) == ()


@pytest.mark.parametrize(
    ("callee", "title"),
    [
        ("writer.add_histogram(...)", "writing histograms in tensorboard"),
        ("writer.add_image(...)", "reporting whole tensors in tensorboard"),
        ("writer.add_scalar(...)", "logging in tensorboard"),
    ],
)
def test_the_same_calls_of_one_function_are_one_finding(callee: str, title: str) -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    calls = [
        sampled.line(number, HostKind.LIBRARY, share * step_ms, package="tensorboard",
                     callee=callee)
        for number, share in ((20, 0.1), (21, 0.2))
    ]  # fmt: skip
    profile = sampled.profile(*calls)
    finding = made.only(CHECK, profile)
    assert finding.title.startswith(title)
    assert finding.where == "train.py:21"
    assert made.saved_ms(finding, profile) == pytest.approx(0.27 * step_ms, rel=0.01)
