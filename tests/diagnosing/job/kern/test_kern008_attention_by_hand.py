from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.kern.jobs import attention, of, operator
from diagnosing.job.made import changes, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Place


def test_attention_by_hand() -> None:
    job = of(profile(), *attention())
    finding = only("attention-by-hand", job)
    assert (finding.code, finding.where) == ("KERN008", "attention.py:21")
    assert saved_ms(finding, job) == pytest.approx(15.0, rel=0.01)
    assert "- weights = scores.softmax(-1)" in changes(finding)
    assert "scaled_dot_product_attention" in changes(finding)


def test_attention_by_hand_without_shapes_or_without_lines() -> None:
    assert only("attention-by-hand", of(profile(), *attention(shapes=())))
    assert only("attention-by-hand", of(profile(), *attention(where=None))).where is None
    assert findings("attention-by-hand", of(profile(), *attention(where=None, shapes=()))) == ()


def test_softmax_and_batched_products_that_do_not_meet() -> None:
    first, second, softmax, div = attention()
    classes = dataclasses.replace(softmax, shapes=("4096x1000",))
    assert findings("attention-by-hand", of(profile(), first, second, div)) == ()
    elsewhere = dataclasses.replace(classes, where=Place("loss.py", 3, "loss"))
    assert findings("attention-by-hand", of(profile(), first, second, elsewhere)) == ()
    other = dataclasses.replace(softmax, shapes=("4x8x512x500",))
    assert findings("attention-by-hand", of(profile(), first, second, other)) == ()
    fallback = operator("aten::_scaled_dot_product_attention_math", Kind.ATTENTION, 1.0)
    assert findings("attention-by-hand", of(profile(), *attention(), fallback)) == ()
