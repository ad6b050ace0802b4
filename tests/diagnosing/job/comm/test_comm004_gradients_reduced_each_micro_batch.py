from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.comm.jobs import exchanging
from flatout.nouns.profile import Collective

MICRO = {"job__micro_steps": 4.0}


def test_gradients_reduced_each_micro_batch() -> None:
    profile = exchanging(Collective("all_reduce", 20.0, 36.0, 16.0, 4 * 102.2e6), **MICRO)
    finding = made.only("gradients-reduced-each-micro-batch", profile)
    assert (finding.code, finding.where) == ("COMM004", "train.py:85")
    assert "no_sync()" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(12)
    assert "COMM001" not in made.codes(profile)


def test_gradients_reduced_each_micro_batch_by_the_number_of_messages() -> None:
    one = Collective("all_reduce", 24.0, 36.0, 16.0)
    assert made.only("gradients-reduced-each-micro-batch", exchanging(one, **MICRO))
    once = exchanging(dataclasses.replace(one, calls=6.0), **MICRO)
    assert made.findings("gradients-reduced-each-micro-batch", once) == ()


def test_gradients_reduced_once() -> None:
    once = Collective("all_reduce", 5.0, 36.0, 16.0, 102.2e6)
    assert made.findings("gradients-reduced-each-micro-batch", exchanging(once, **MICRO)) == ()
    each = exchanging(dataclasses.replace(once, bytes=4e8))
    assert made.findings("gradients-reduced-each-micro-batch", each) == ()
