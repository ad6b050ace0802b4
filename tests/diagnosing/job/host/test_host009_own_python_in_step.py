from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.finding import Severity
from flatout.nouns.host_time import HostKind
from flatout.nouns.place import Place

CHECK = "own-python-in-step"


def test_the_function_with_its_costliest_line() -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    profile = sampled.profile(
        sampled.line(14, HostKind.PYTHON, 0.2 * step_ms, function="mask", callee="mask[i][j]"),
        sampled.line(13, HostKind.PYTHON, 0.1 * step_ms, function="mask", callee="range(n)"),
        sampled.line(10, HostKind.TORCH, 0.5 * step_ms),
    )
    finding = made.only(CHECK, profile)
    assert (finding.code, finding.where, finding.boost) == ("HOST009", "train.py:14", None)
    assert "mask()" in finding.title and "30%" in finding.title
    assert "train.py:14 mask[i][j]" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(0.27 * step_ms, rel=0.01)


@pytest.mark.parametrize(
    "line",
    [
        sampled.line(14, HostKind.PYTHON, 0.2),
        sampled.line(14, HostKind.PYTHON, 90.0, samples=2),
        sampled.line(14, HostKind.PYTHON, 90.0, loading=True),
        sampled.line(14, HostKind.TORCH, 90.0),
    ],
    ids=["little", "by chance", "the loader's", "torch's"],
)
def test_nothing_is_said(line: sampled.HostLine) -> None:
    assert made.findings(CHECK, sampled.profile(line)) == ()


def test_what_slows_other_programs_is_not_the_scripts() -> None:
    """Time without a core is in no line, and the lines are those of a step without it."""
    step_ms = made.cpu_profile().anatomy.step_ms
    profile = sampled.profile(
        sampled.line(14, HostKind.PYTHON, 0.5 * step_ms), step_ms=4 * step_ms, queued_ms=step_ms * 2
    )
    (finding,) = made.findings(CHECK, profile)
    assert made.saved_ms(finding, profile) == pytest.approx(0.9 * 0.25 * step_ms, rel=0.01)


@pytest.mark.parametrize(
    ("share", "callee", "severity"),
    [
        (0.06, "self.own(x)", Severity.NOTE),
        (0.06, "sorted(rows)", Severity.WARNING),
        (0.12, "self.own(x)", Severity.WARNING),
    ],
)
def test_little_python_without_a_loop_is_a_note(
    share: float, callee: str, severity: Severity
) -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(30, HostKind.PYTHON, share * step_ms, callee=callee, modelling=True)
    assert made.only(CHECK, sampled.profile(line)).severity is severity


@pytest.mark.parametrize(
    "source", ["for env, action in zip(envs, actions):", "state, reward = env.step(action)"]
)
def test_environments_one_by_one(source: str) -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(
        30, HostKind.PYTHON, 0.3 * step_ms, function="CartPole.step",
        chain=(Place("train.py", 5, "train", "rollout()"), Place("train.py", 20, "roll", source)),
    )  # fmt: skip
    finding = made.only(CHECK, sampled.profile(line))
    assert finding.cure.text.startswith("Vectorise the environments that train.py:20 steps")


@pytest.mark.parametrize(
    ("steps", "few", "severity"),
    [
        ((3,), True, Severity.NOTE),
        ((3, 9), True, Severity.NOTE),
        ((3, 8, 13), True, Severity.WARNING),
        (tuple(range(20)), False, Severity.WARNING),
        (None, False, Severity.WARNING),
    ],
)
def test_what_was_seen_in_few_steps_promises_little_unless_it_comes_again(
    steps: tuple[int, ...] | None, few: bool, severity: Severity
) -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(14, HostKind.PYTHON, 0.5 * step_ms, callee="sorted(rows)", steps=steps)
    profile = sampled.profile(line)
    finding = made.only(CHECK, profile)
    assert finding.severity is severity
    assert (f"in {len(steps or ())} of 20 steps" in finding.title) is few
    much = made.saved_ms(finding, profile) > 0.1 * step_ms
    assert much is (severity is Severity.WARNING)


def test_few_stacks_in_few_short_steps_are_chance() -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(14, HostKind.PYTHON, 0.5 * step_ms, samples=6, steps=(3, 9))
    assert "of 20 steps" not in made.only(CHECK, sampled.profile(line)).title
