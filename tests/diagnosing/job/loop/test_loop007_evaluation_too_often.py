from __future__ import annotations

import pytest

from diagnosing.job.made import cpu_profile, findings, only
from flatout.nouns.anatomy import Kind
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator
from machines.healthy import changed


def test_evaluation_too_often() -> None:
    job = cpu_profile(seen__eval_s=0.6, seen__eval_where="train.py:50")
    finding = only("evaluation-too-often", job)
    assert (finding.code, finding.where) == ("LOOP007", "train.py:50")
    assert "67% of the time" in finding.title
    assert finding.gain.ratio == pytest.approx((300 + 585) / 300, rel=0.01)
    once_an_epoch = changed(job, seen__epochs=2)
    assert findings("evaluation-too-often", once_an_epoch) == ()
    assert findings("evaluation-too-often", cpu_profile(seen__eval_s=0.02)) == ()


def test_one_that_returns_every_few_steps() -> None:
    fields = {"seen__eval_s": 0.06, "seen__eval_where": "train.py:50"}
    assert findings("evaluation-too-often", cpu_profile(**fields)) == ()
    seldom = cpu_profile(**fields, seen__eval_every=50.0)
    assert findings("evaluation-too-often", seldom) == ()
    often = cpu_profile(**fields, seen__eval_every=2.0, seen__eval_called="train.py:90")
    finding = only("evaluation-too-often", often)
    assert finding.title == "evaluation after every 2 steps takes 17% of the time"
    assert finding.where == "train.py:90"
    assert "train.py:50" in finding.evidence
    epoch = changed(often, seen__eval_every=15.0, seen__eval_after_epoch=True)
    assert findings("evaluation-too-often", epoch) == ()


def test_a_teacher_is_no_evaluation() -> None:
    teacher = cpu_profile(seen__eval_s=0.6, seen__eval_trained=False)
    assert findings("evaluation-too-often", teacher) == ()


@pytest.mark.parametrize(
    ("function", "source", "title", "cure"),
    [
        ("Teller.on_step_end", "out = model.generate(", "generating in Teller.on_step_end()",
         "Generate less often"),
        ("validate", "scores = model(x)", "evaluation in validate()", "Evaluate less often"),
        ("main", "scores = model(x)", "evaluation", "Evaluate less often"),
    ],
)  # fmt: skip
def test_what_is_called_where(function: str, source: str, title: str, cure: str) -> None:
    place = Place("train.py", 50, function, source)
    job = cpu_profile(
        operators=(Operator("aten::mm", Kind.MATMUL, 9.0, 9.0, where=place),),
        seen__eval_s=0.6,
        seen__eval_where="train.py:50",
        seen__eval_every=1.0,
    )
    finding = only("evaluation-too-often", job)
    assert finding.title == f"{title} after every step takes 67% of the time"
    assert finding.cure.text.startswith(cure)
    assert source in finding.evidence
