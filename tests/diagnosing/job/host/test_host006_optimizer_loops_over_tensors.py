from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.anatomy import Kind, Part
from flatout.nouns.host_time import HostKind
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator, Profile
from flatout_agent import wire


def test_optimizer_loops_over_tensors() -> None:
    parts = {Kind.OPTIMIZER: 30.0}
    rmsprop = {
        "job__optimizers__0__kind": "RMSprop",
        "job__optimizers__0__fused": None,
        "job__optimizers__0__tensors": 200,
    }
    profile = with_launches(made.cpu_profile(parts, **rmsprop), Kind.OPTIMIZER, 1600.0)
    finding = made.only("optimizer-loops-over-tensors", profile)
    assert (finding.code, finding.where) == ("HOST006", "train.py:86")
    assert finding.boost == "fused-optimizer"
    assert "torch.optim.RMSprop(model.parameters(), ..., foreach=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(1600 * 0.005 * 199 / 200)
    own = made.changed(profile, job__optimizers__0__from_torch=False)
    assert "_foreach_add_" in made.changes(made.only("optimizer-loops-over-tensors", own))
    for changes in (
        {"job__optimizers__0__foreach": True},
        {"job__optimizers__0__kind": "AdamW"},
        {"job__optimizers__0__tensors": 4},
    ):
        silent = made.changed(profile, **changes)
        assert made.findings("optimizer-loops-over-tensors", silent) == ()


def with_launches(profile: Profile, kind: Kind, launches: float) -> Profile:
    parts = tuple(
        Part(kind, part.ms, launches) if part.kind is kind else part
        for part in profile.anatomy.parts
    )
    changed: Profile = made.changed(profile, anatomy__parts=parts)
    return changed


UPDATE = wire.UpdateSeen("train.py:30", "step", ("train.py:29", "train.py:30"), 48, 600)


def by_hand(update: wire.UpdateSeen, ms: float, *operators: Operator) -> Profile:
    lines = (
        sampled.line(29, HostKind.TORCH, 0.4 * ms, updating=True),
        sampled.line(30, HostKind.PYTHON, 0.6 * ms, updating=True),
        sampled.line(31, HostKind.PYTHON, 5.0),
    )
    profile = made.changed(sampled.profile(*lines), job__optimizers=(), seen__update=update)
    return dataclasses.replace(profile, operators=(*profile.operators, *operators))


def test_weights_updated_by_hand() -> None:
    profile = by_hand(UPDATE, 60.0)
    finding = made.only("optimizer-loops-over-tensors", profile)
    assert (finding.code, finding.where) == ("HOST006", "train.py:30")
    assert "torch.optim.SGD(model.parameters(), ..., fused=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(0.8 * 60, rel=0.01)
    root = Operator("aten::sqrt", Kind.ELEMENTWISE, 48.0, 0.1, where=Place("train.py", 29))
    adam = made.only("optimizer-loops-over-tensors", by_hand(UPDATE, 60.0, root))
    assert "torch.optim.Adam(" in made.changes(adam)


def test_an_update_of_one_operator_for_each_weight_gains_nothing() -> None:
    few = dataclasses.replace(UPDATE, operators=48)
    assert made.findings("optimizer-loops-over-tensors", by_hand(few, 60.0)) == ()
    assert made.findings("optimizer-loops-over-tensors", by_hand(UPDATE, 0.5)) == ()


def test_the_lines_of_an_update_are_told_once() -> None:
    profile = by_hand(UPDATE, 60.0)
    assert made.findings("own-python-in-step", profile) == ()
    assert made.findings("operators-in-python-loop", profile) == ()
