from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.data.jobs import few
from flatout.nouns.host_time import HostKind, HostLine, HostTime
from flatout.nouns.place import Place


def test_decoding_binds() -> None:
    profile = few(15, busy_ms=2350.0, job__cores=16)
    finding = made.only("decoding-binds", profile)
    assert finding.code == "DATA007"
    assert "a sample costs 9.18 ms, decoding a picture 4.17 ms" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(60, abs=1)
    assert made.findings("decoding-binds", few(8, busy_ms=1200.0, job__cores=32)) == ()
    assert made.findings("decoding-binds", few(15, busy_ms=300.0, job__cores=16)) == ()


def test_the_line_that_the_workers_execute_most() -> None:
    place = Place("data.py", 30, "Pictures.__getitem__", "image = Image.open(path)")
    line = HostLine(place, HostKind.LIBRARY, 900.0, "image.convert('RGB')", "PIL", loading=True)
    host = HostTime(10, 100.0, (), worker_lines=(line,))
    profile = dataclasses.replace(few(15, busy_ms=2350.0, job__cores=16), host=host)
    finding = made.only("decoding-binds", profile)
    assert finding.where == "data.py:30"
    assert "most of it image.convert('RGB') in PIL at data.py:30" in finding.evidence
