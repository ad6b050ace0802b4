"""What one call for all would leave of a loop of independent calls."""

from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.diagnosing.job.host import repeats
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostKind
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator, Profile
from flatout_agent import wire

CHECK = "operators-in-python-loop"
LINE = Place("model.py", 20, "forward", "maps.append(F.conv2d(x[:, c : c + 1], kernel))")
ROW = wire.RepeatSeen(
    where="model.py:19",
    source="for c in range(channels):",
    lines=(str(LINE),),
    operators=("aten.convolution",),
    shapes=("12x1x36x36, 1x1x5x5",),
    calls=72,
    left=2,
    kept=2 / 72,
    s=0.04,
    modelling=True,
)
SHAPES = ("12x1x36x36, 1x1x5x5",)
FORWARD = Operator(
    "aten::mkldnn_convolution", Kind.MATMUL, 72, 30.0, shapes=SHAPES, where=LINE, flops=5.5e6
)
BACKWARD = Operator(
    "aten::convolution_backward", Kind.MATMUL, 72, 40.0, shapes=SHAPES, where=LINE, backward=True
)
FILLED = Operator(
    "aten::fill_", Kind.ELEMENTWISE, 72, 10.0, shapes=("12x48x36x36",), where=LINE, backward=True
)
LARGE = Operator("aten::add", Kind.ELEMENTWISE, 72, 10.0, shapes=("12x24x200x200",), where=LINE)


def job(*operators: Operator, row: wire.RepeatSeen = ROW, base: Profile | None = None) -> Profile:
    base = made.cpu_profile() if base is None else base
    assert base.seen is not None
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, repeats=(row,))
    return dataclasses.replace(
        base,
        operators=(*base.operators, *operators),
        seen=dataclasses.replace(base.seen, flow=flow),
    )


def test_a_convolution_for_each_channel() -> None:
    profile = job(FORWARD, BACKWARD, FILLED)
    finding = made.only(CHECK, profile)
    assert (finding.code, finding.where) == ("HOST011", "model.py:19")
    assert finding.title.startswith("convolution is called 72 times one by one in a Python loop")
    assert any("groups=" in command for command in finding.cure.commands)
    assert made.saved_ms(finding, profile) == pytest.approx(0.9 * 70 / 72 * 80, rel=0.02)


def test_the_work_itself_stays() -> None:
    (cost,) = repeats.costs(job(FORWARD, BACKWARD, LARGE))
    assert cost.ms == 80.0
    assert cost.spared_ms < 70.0, "an addition of so many elements takes all of its time"
    heavy = dataclasses.replace(FORWARD, flops=30.0 * repeats.FLOPS_PER_MS)
    assert made.findings(CHECK, job(heavy)) == ()


def test_a_small_part_of_the_step_is_not_told() -> None:
    assert made.findings(CHECK, job(dataclasses.replace(FORWARD, host_ms=25.0))) == ()
    assert made.findings(CHECK, job()) == ()


def test_an_optimizer_that_loops_is_told_elsewhere() -> None:
    update = dataclasses.replace(FORWARD, kind=Kind.OPTIMIZER)
    assert repeats.costs(job(update)) == []


def test_on_a_gpu_only_the_time_that_it_waits_counts() -> None:
    profile = job(FORWARD, BACKWARD, base=made.profile())
    assert made.findings(CHECK, profile) == (), "it waits for the host for 5 ms of 100"


@pytest.mark.parametrize(
    ("operators", "own_weights", "shape", "words"),
    [
        (("aten.mm", "aten.bmm", "aten._softmax"), True, "6x160x160", "scaled_dot_product"),
        (("aten.convolution",), True, "1x24x36x36", "groups=len(inputs)"),
        (("aten.convolution",), False, "1x24x36x36", "flatten(0, 1)"),
        (("aten.addmm",), True, "64x8", "torch.bmm"),
        (("aten.addmm",), False, "64x8", "flatten(0, 1)"),
    ],
)
def test_the_cure_fits_the_operators(
    operators: tuple[str, ...], own_weights: bool, shape: str, words: str
) -> None:
    row = dataclasses.replace(ROW, operators=operators, own_weights=own_weights, shapes=(shape,))
    finding = made.only(CHECK, job(FORWARD, BACKWARD, row=row))
    assert words in " ".join((finding.cure.text, *finding.cure.commands))


def test_outside_of_the_model_it_is_done_on_the_whole_batch() -> None:
    row = dataclasses.replace(ROW, operators=("aten.flip", "aten.mul"), modelling=False)
    finding = made.only(CHECK, job(FORWARD, BACKWARD, row=row))
    assert "whole batch" in finding.cure.text


def test_python_between_the_operators_is_spared_with_them() -> None:
    line = dataclasses.replace(sampled.line(20, HostKind.TORCH, 60.0), where=LINE)
    (cost,) = repeats.costs(job(FORWARD, base=sampled.profile(line)))
    assert cost.ms == 60.0


def test_the_same_lines_are_told_once() -> None:
    line = dataclasses.replace(sampled.line(20, HostKind.TORCH, 90.0), where=LINE)
    small = Operator("aten::select", Kind.OTHER, 144, 1.0, where=LINE)
    profile = job(FORWARD, small, base=sampled.profile(line))
    assert len(made.findings(CHECK, profile)) == 1


def test_parameters_one_by_one_are_for_foreach() -> None:
    source = "for p, shadow in zip(model.parameters(), shadows):"
    row = dataclasses.replace(ROW, operators=("aten.mul_",), modelling=False, source=source)
    finding = made.only(CHECK, job(FORWARD, BACKWARD, row=row))
    assert any("_foreach_" in command for command in finding.cure.commands)
