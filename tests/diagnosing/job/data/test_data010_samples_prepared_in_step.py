from __future__ import annotations

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.host_time import HostKind

CHECK = "samples-prepared-in-step"


def test_decoding_in_the_training_thread() -> None:
    decoding = sampled.line(
        48, HostKind.LIBRARY, 30.0, function="Pictures.decoded", package="PIL", loading=True
    )
    finding = made.only(CHECK, sampled.profile(decoding))
    assert (finding.code, finding.where) == ("DATA010", "train.py:48")
    assert "keep the pictures" in finding.cure.text


def test_work_outside_of_the_loader_is_not_counted() -> None:
    metrics = sampled.line(20, HostKind.LIBRARY, 30.0, package="sklearn")
    assert made.findings(CHECK, sampled.profile(metrics)) == ()


def test_what_the_loader_does_itself_has_no_line_of_the_data_set() -> None:
    collating = sampled.line(8, HostKind.TORCH, 30.0, package="torch", loading=True, collating=True)
    assert made.findings(CHECK, sampled.profile(collating)) == ()
