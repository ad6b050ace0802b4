from __future__ import annotations

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind, Part
from flatout.nouns.profile import Profile


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
