from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.copy.jobs import at, job
from diagnosing.job.host import sampled
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Copy, Operator, Place, Sync
from flatout_agent.wire import CallSeen, FlowSeen

BUILT = at(88, "mask = torch.ones(batch, length, length).tril().to(device)")


def test_tensor_built_on_the_host() -> None:
    one = Copy("HtoD", 1.0, 67e6, 8.2, pinned=False, exposed_ms=8.2, where=BUILT)
    profile = job(
        (one,),
        (Sync("aten::to", 1.0, 8.3, idle_ms=2.0, where=BUILT),),
        operators=(Operator("aten::tril", Kind.OTHER, 1.0, 21.0, where=BUILT),),
    )
    finding = made.only("tensors-built-on-the-host", profile)
    assert (finding.code, finding.where) == ("COPY004", "train.py:88")
    assert "21.0 ms on the host" in finding.evidence
    assert "device=device" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(10.2)
    assert "COPY001" not in made.codes(profile)


def test_tensor_made_on_the_device() -> None:
    place = dataclasses.replace(BUILT, source="mask = torch.ones(9, device=device)")
    one = Copy("HtoD", 1.0, 67e6, 8.2, pinned=False, exposed_ms=8.2, where=place)
    assert made.findings("tensors-built-on-the-host", job((one,))) == ()


def test_tensors_made_in_each_step_on_a_cpu() -> None:
    mask = Place("model.py", 40, "forward", "mask = torch.tril(torch.ones(n, n))")
    operators = (
        Operator("aten::ones", Kind.ELEMENTWISE, 12.0, 4.0, where=mask),
        Operator("aten::tril", Kind.ELEMENTWISE, 12.0, 9.0, where=mask),
    )
    calls = (CallSeen("torch.tensor", 1.0, 0.020, "train.py:70", "cpu"),)
    profile = made.cpu_profile(operators=operators, seen__calls=calls)
    first, second = made.findings("tensors-built-on-the-host", profile)
    assert (first.where, second.where) == ("train.py:70", "model.py:40")
    assert made.saved_ms(first, profile) == pytest.approx(20)
    assert made.saved_ms(second, profile) == pytest.approx(13)


def test_samples_and_random_tensors_are_made_anew_by_design_on_a_cpu() -> None:
    sample = Place("data.py", 9, "__getitem__", "return torch.tensor(row)")
    noise = Place("model.py", 44, "forward", "x = x + torch.randn(n, n)")
    operators = tuple(
        Operator("aten::ones", Kind.OTHER, 64.0, 30.0, where=place) for place in (sample, noise)
    )
    calls = (CallSeen("torch.randn", 1.0, 0.020, "model.py:44", "cpu"),)
    profile = made.cpu_profile(operators=operators, seen__calls=calls)
    assert made.findings("tensors-built-on-the-host", profile) == ()


def test_values_that_change_are_kept_in_arrays_and_half_of_the_time_stays() -> None:
    place = Place("train.py", 70, "rollout", "s = torch.tensor([e.state for e in envs])")
    rows = (Operator("aten::lift_fresh", Kind.OTHER, 1.0, 0.1, where=place),)
    calls = (CallSeen("torch.tensor", 1.0, 0.020, "train.py:70", "cpu"),)
    profile = made.cpu_profile(operators=rows, seen__calls=calls, seen__flow=FlowSeen(2, 100, 0.1))
    (finding,) = made.findings("tensors-built-on-the-host", profile)
    assert made.saved_ms(finding, profile) == pytest.approx(10)
    assert "from_numpy" in finding.cure.text


def test_what_evaluation_takes_on_the_line_is_no_part_of_the_step() -> None:
    calls = (CallSeen("torch.tensor", 8.0, 0.080, "train.py:10", "cpu"),)
    profile = made.changed(
        sampled.profile(sampled.line(10, HostKind.TORCH, 12.0)), seen__calls=calls
    )
    (finding,) = made.findings("tensors-built-on-the-host", profile)
    assert made.saved_ms(finding, profile) == pytest.approx(12, rel=0.02)
