"""HOST006, HOST011, HOST017: operators one by one, and work on weights beside the training."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from diagnosing.job.host.sampled import STEP_MS
from diagnosing.job.telling import JobTold, each_of, told
from flatout.diagnosing.diagnose import diagnose_profile
from flatout.diagnosing.job.host import repeats
from flatout.nouns.anatomy import Kind, Part
from flatout.nouns.host_time import HostKind, HostLine
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator, Profile
from flatout_agent import wire

BY_TENSOR, ONE_BY_ONE = "HOST006", "HOST011"
BESIDE = "HOST017"


def with_launches(profile: Profile, kind: Kind, launches: float) -> Profile:
    parts = tuple(
        Part(kind, part.ms, launches) if part.kind is kind else part
        for part in profile.anatomy.parts
    )
    changed: Profile = made.changed(profile, anatomy__parts=parts)
    return changed


RMSPROP = {"kind": "RMSprop", "fused": None, "tensors": 200}


def looping(**facts: Any) -> Profile:
    """A job on a CPU whose optimizer takes 1600 launches for 200 tensors."""
    optimizer = {f"job__optimizers__0__{key}": it for key, it in {**RMSPROP, **facts}.items()}
    return with_launches(
        made.cpu_profile({Kind.OPTIMIZER: 30.0}, **optimizer), Kind.OPTIMIZER, 1600.0
    )


UPDATE = wire.UpdateSeen("train.py:30", "step", ("train.py:29", "train.py:30"), 48, 600)


def by_hand(update: wire.UpdateSeen, ms: float, *operators: Operator) -> Profile:
    lines = (
        sampled.line(29, HostKind.TORCH, 0.4 * ms, updating=True),
        sampled.line(30, HostKind.PYTHON, 0.6 * ms, updating=True),
        sampled.line(31, HostKind.PYTHON, 5.0),
    )
    profile = made.changed(sampled.profile(*lines), job__optimizers=(), seen__update=update)
    return dataclasses.replace(profile, operators=(*profile.operators, *operators))


def calling(source: str, *operators: tuple[str, float, float], **fields: Any) -> Profile:
    """Line 30 calls these operators: name, calls, milliseconds of all."""
    place = Place("train.py", 30, "clip", source)
    line = dataclasses.replace(
        sampled.line(30, HostKind.TORCH, 0.3 * STEP_MS, **fields), where=place
    )
    base = sampled.profile(line)
    added = [Operator(name, Kind.OTHER, calls, ms, where=place) for name, calls, ms in operators]
    return dataclasses.replace(base, operators=(*base.operators, *added))


def test_item_for_each_parameter() -> None:
    clipping = calling(
        "total += p.grad.norm().item() ** 2",
        ("aten::linalg_vector_norm", 120.0, 1.0),
        ("aten::item", 120.0, 0.1),
        ("aten::_local_scalar_dense", 120.0, 0.1),
    )
    finding = made.only(ONE_BY_ONE, clipping)
    assert (finding.code, finding.where, finding.boost) == ("HOST011", "train.py:30", None)
    assert finding.title.startswith("values are read from tensors one by one")
    assert any("clip_grad_norm_" in command for command in finding.cure.commands)
    assert "aten::item 120 times" in finding.evidence


AVERAGING = (("aten::detach", 96.0, 0.4), ("aten::mul", 64.0, 0.3), ("aten::copy_", 32.0, 0.3))


@pytest.mark.parametrize(
    ("source", "once", "told"),
    [
        ("average.update_parameters(model)", ("aten::add_", 1.0, 0.01), False),
        ("nn.utils.clip_grad_norm_(net.parameters(), 1.0)", ("aten::stack", 1.0, 0.01), False),
        ("nn.utils.clip_grad_norm_(p, 1.0)", ("aten::stack", 32.0, 0.1), True),
        ("update(average, model)", ("aten::add_", 1.0, 0.01), True),
    ],
)
def test_functions_of_torch_that_go_through_all_weights(
    source: str, once: tuple[str, float, float], told: bool
) -> None:
    assert bool(made.findings(ONE_BY_ONE, calling(source, *AVERAGING, once))) is told


CALLER = Place("train.py", 30, "train", "update(average, model)")
SOURCES = {
    40: "fresh = copy.deepcopy(model)",
    41: "new.data = decay * old.data + (1 - decay) * new.data",
    42: "values = torch.linalg.svdvals(p)",
    43: "average.load_state_dict(state)",
    44: "old.lerp_(new, 0.1)",
    45: "table[name] = o.quantile(0.99).item()",
    46: "g = p.grad.clone()",
    51: "average.update_parameters(model)",
    52: "self.log('loss', loss)",
}


def line(number: int, share: float, function: str = "update", **fields: Any) -> HostLine:
    place = Place("train.py", number, function, SOURCES.get(number, ""))
    fields.setdefault("chain", (CALLER,))
    fields.setdefault("callee", place.source)
    kind = fields.pop("kind", HostKind.TORCH)
    return HostLine(place, kind, share * STEP_MS, samples=round(share * 1000), **fields)


def row(number: int, *operators: str, source: str = "weights", **fields: Any) -> wire.BesideSeen:
    return wire.BesideSeen(f"train.py:{number}", source, 0.01, operators, **fields)


def working(*lines: HostLine, rows: tuple[wire.BesideSeen, ...] = ()) -> Profile:
    backward = sampled.line(10, HostKind.TORCH, 0.3 * STEP_MS, callee="loss.backward()")
    flow = made.flow(beside=rows, training=("train.py:10", "train.py:29"))
    profile: Profile = made.changed(sampled.profile(backward, *lines), seen__flow=flow)
    return profile


COPY = row(40, "aten.clone")
AVERAGE = row(41, "aten.mul", "aten.add")


@pytest.mark.parametrize(
    ("number", "known", "fields", "title", "cure"),
    [
        (40, row(40, "aten.clone", "aten.copy_"), {}, "copying the weights with copy.deep", "only"),
        (43, row(43, "aten.mul", "aten.copy_"), {}, "averaging the weights through state", "lerp_"),
        (42, row(42, "aten._linalg_svd"), {}, "computing singular values", "every 50 steps"),
        (45, row(45, "aten.sort", source="values", steers=True), {"hooked": True},
         "computing statistics in forward hooks", "Remove the hooks"),
        (46, row(46, "aten.clone", source="accumulated"), {"function": "train"},
         "cloning gradients", "adds to .grad"),
        (51, row(51, "aten.detach", "aten.mul", "aten.add", "aten.copy_", "aten.gt"), {},
         "averaging the weights one by one", "multi_avg_fn"),
        (47, row(47, "aten.mean", source="gradients"), {}, "computing statistics of gradients",
         "every 50 steps"),
    ],
)  # fmt: skip
def test_what_it_does(
    number: int, known: wire.BesideSeen, fields: dict[str, Any], title: str, cure: str
) -> None:
    finding = made.only(BESIDE, working(line(number, 0.3, **fields), rows=(known,)))
    assert finding.title.startswith(title)
    assert cure in finding.cure.text
    assert finding.where == f"train.py:{number}"


def test_a_call_with_a_finding_of_its_own_is_not_told_twice() -> None:
    job = working(line(40, 0.3), rows=(COPY,))
    call = wire.CallSeen("torch.save", 1.0, 0.25 * STEP_MS / 1000, "train.py:40")
    assert made.findings(BESIDE, made.changed(job, seen__calls=(call,))) == ()


def test_findings_about_the_same_lines_are_left_out() -> None:
    job = working(
        line(40, 0.2), line(50, 0.12, kind=HostKind.LIBRARY, package="copy"), rows=(COPY,)
    )
    codes = [finding.code for finding in diagnose_profile(job)]
    assert "HOST017" in codes
    assert "HOST010" not in codes


MAPS = Place("model.py", 20, "forward", "maps.append(F.conv2d(x[:, c : c + 1], kernel))")
CHANNELS = wire.RepeatSeen(
    where="model.py:19",
    source="for c in range(channels):",
    lines=(str(MAPS),),
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
    "aten::mkldnn_convolution", Kind.MATMUL, 72, 30.0, shapes=SHAPES, where=MAPS, flops=5.5e6
)
BACKWARD = Operator(
    "aten::convolution_backward", Kind.MATMUL, 72, 40.0, shapes=SHAPES, where=MAPS, backward=True
)
FILLED = Operator(
    "aten::fill_", Kind.ELEMENTWISE, 72, 10.0, shapes=("12x48x36x36",), where=MAPS, backward=True
)
LARGE = Operator("aten::add", Kind.ELEMENTWISE, 72, 10.0, shapes=("12x24x200x200",), where=MAPS)


def repeating(
    *operators: Operator, row: wire.RepeatSeen = CHANNELS, base: Profile | None = None
) -> Profile:
    base = made.cpu_profile() if base is None else base
    profile: Profile = made.changed(
        base, operators=(*base.operators, *operators), seen__flow=made.flow(repeats=(row,))
    )
    return profile


def test_a_convolution_for_each_channel() -> None:
    profile = repeating(FORWARD, BACKWARD, FILLED)
    finding = made.only(ONE_BY_ONE, profile)
    assert (finding.code, finding.where) == ("HOST011", "model.py:19")
    assert finding.title.startswith("convolution is called 72 times one by one in a Python loop")
    assert any("groups=" in command for command in finding.cure.commands)
    assert made.saved_ms(finding, profile) == pytest.approx(0.9 * 70 / 72 * 80, rel=0.02)


def test_the_work_itself_stays() -> None:
    (cost,) = repeats.costs(repeating(FORWARD, BACKWARD, LARGE))
    assert cost.ms == 80.0
    assert cost.spared_ms < 70.0, "an addition of so many elements takes all of its time"
    heavy = dataclasses.replace(FORWARD, flops=30.0 * repeats.FLOPS_PER_MS)
    assert made.findings(ONE_BY_ONE, repeating(heavy)) == ()


def test_an_optimizer_that_loops_is_told_elsewhere() -> None:
    update = dataclasses.replace(FORWARD, kind=Kind.OPTIMIZER)
    assert repeats.costs(repeating(update)) == []


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
    row = dataclasses.replace(
        CHANNELS, operators=operators, own_weights=own_weights, shapes=(shape,)
    )
    finding = made.only(ONE_BY_ONE, repeating(FORWARD, BACKWARD, row=row))
    assert words in " ".join((finding.cure.text, *finding.cure.commands))


def test_outside_of_the_model_it_is_done_on_the_whole_batch() -> None:
    row = dataclasses.replace(CHANNELS, operators=("aten.flip", "aten.mul"), modelling=False)
    finding = made.only(ONE_BY_ONE, repeating(FORWARD, BACKWARD, row=row))
    assert "whole batch" in finding.cure.text


def test_python_between_the_operators_is_spared_with_them() -> None:
    line = dataclasses.replace(sampled.line(20, HostKind.TORCH, 60.0), where=MAPS)
    (cost,) = repeats.costs(repeating(FORWARD, base=sampled.profile(line)))
    assert cost.ms == 60.0


def test_a_repeated_line_is_told_once() -> None:
    line = dataclasses.replace(sampled.line(20, HostKind.TORCH, 90.0), where=MAPS)
    small = Operator("aten::select", Kind.OTHER, 144, 1.0, where=MAPS)
    profile = repeating(FORWARD, small, base=sampled.profile(line))
    assert len(made.findings(ONE_BY_ONE, profile)) == 1


def test_parameters_one_by_one_are_for_foreach() -> None:
    source = "for p, shadow in zip(model.parameters(), shadows):"
    row = dataclasses.replace(CHANNELS, operators=("aten.mul_",), modelling=False, source=source)
    finding = made.only(ONE_BY_ONE, repeating(FORWARD, BACKWARD, row=row))
    assert any("_foreach_" in command for command in finding.cure.commands)


REPEATED = (("aten::as_strided", 24.0, 0.1), ("aten::repeat", 1.0, 0.3), ("aten::view", 4.0, 0.1))
SILENT = [
    (BY_TENSOR, looping(foreach=True)),
    (BY_TENSOR, looping(kind="AdamW")),
    (BY_TENSOR, looping(tensors=4)),
    (BY_TENSOR, by_hand(dataclasses.replace(UPDATE, operators=48), 60.0)),  # one for each weight
    (BY_TENSOR, by_hand(UPDATE, 0.5)),
    # few, large, those of one call, those of the model
    (ONE_BY_ONE, calling("y = a @ b", ("aten::mm", 2.0, 20.0))),
    (ONE_BY_ONE, calling("y = a @ b", ("aten::mm", 100.0, 80.0))),
    (ONE_BY_ONE, calling("wide = x.repeat(400, 1)", *REPEATED)),
    (ONE_BY_ONE, calling("h = cell(x[:, t], h)", ("aten::addmm", 120.0, 1.0), modelling=True)),
    (ONE_BY_ONE, repeating(dataclasses.replace(FORWARD, host_ms=25.0))),
    (ONE_BY_ONE, repeating()),
    # unknown, little, may steer, in place, at once, logged, mostly something else, the loader's
    (BESIDE, working(line(40, 0.3))),
    (BESIDE, working(line(40, 0.09), rows=(COPY,))),
    (BESIDE, working(line(45, 0.3), rows=(row(45, "aten.sort", source="values", steers=True),))),
    (BESIDE, working(line(44, 0.3), rows=(row(44, "aten.lerp_"),))),
    (BESIDE, working(line(51, 0.3), rows=(row(51, "aten._foreach_lerp_", "aten.add", "aten.gt"),))),
    (
        BESIDE,
        working(
            line(52, 0.2, kind=HostKind.LIBRARY, package="lightning"),
            rows=(row(52, "aten.clone", source="values"),),
        ),
    ),
    (BESIDE, working(line(40, 0.1), line(50, 0.3), rows=(COPY,))),
    (BESIDE, working(line(40, 0.3, loading=True), rows=(COPY,))),
    # the lines of an update are told once
    ("own-python-in-step", by_hand(UPDATE, 60.0)),
    (ONE_BY_ONE, by_hand(UPDATE, 60.0)),
    # on a gpu only the time that it waits counts
    (ONE_BY_ONE, repeating(FORWARD, BACKWARD, base=made.profile())),
]


@pytest.mark.parametrize(("check", "profile"), SILENT)
def test_nothing_is_told(check: str, profile: Profile) -> None:
    assert made.findings(check, profile) == ()


TOLD = [
    told("optimizer loops over tensors", BY_TENSOR, looping(),
         "torch.optim.RMSprop(model.parameters(), ..., foreach=True)", where="train.py:86",
         boost="fused-optimizer", saves=1600 * 0.005 * 199 / 200),
    told("optimizer loops over tensors: 2", BY_TENSOR, looping(from_torch=False), "_foreach_add_"),
    told("weights updated by hand", BY_TENSOR, by_hand(UPDATE, 60.0),
         "torch.optim.SGD(model.parameters(), ..., fused=True)", where="train.py:30",
         saves=0.8 * 60),
    told("weights updated by hand: 2", BY_TENSOR,
         by_hand(UPDATE, 60.0, Operator("aten::sqrt", Kind.ELEMENTWISE, 48.0, 0.1,
             where=Place("train.py", 29))),
         "torch.optim.Adam("),
    told("a mask filled by elements", ONE_BY_ONE,
         calling("mask[i, j] = 1.0", ("aten::select", 4096.0, 4.0), ("aten::fill_", 2048.0, 2.0)),
         "elements are accessed", "whole tensor"),
    told("all that a function does is one work with its cure", BESIDE,
         working(line(40, 0.15), line(41, 0.2), line(50, 0.05, kind=HostKind.PYTHON), rows=(COPY,
             AVERAGE)),
         "averaging the weights with copy.deepcopy in update() takes", "40%", "AveragedModel",
         where="train.py:41", saves=0.7 * 0.4 * STEP_MS),
    told("of a function that serves the training only its own lines count", BESIDE,
         working(line(40, 0.2, "train", chain=()), line(12, 0.3, "train"), rows=(COPY,)),
         saves=0.95 * 0.2 * STEP_MS),
    told("giving back what the lines have made is part of the work", BESIDE,
         working(*[line(46, 0.2, "train", chain=()), line(48, 0.1, "train", chain=(), callee="g"),
             line(49, 0.1, "train", chain=(), callee="other")], rows=(row(46, "aten.clone",
             source="accumulated"),)),
         saves=0.27 * STEP_MS),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: JobTold) -> None:
    case.holds()
