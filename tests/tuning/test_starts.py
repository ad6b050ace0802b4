"""Boosts that need a start: which are tried in fresh processes, with a stand-in for these."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from flatout.measuring import duel
from flatout.measuring.duel import Side
from flatout.measuring.trial import Bench
from flatout.nouns.observer import Silent
from flatout.nouns.trial import Measurement, Trial, Verdict
from flatout.running.one.command import Command
from flatout.running.one.records import Process
from flatout.tuning import starts
from flatout.tuning.candidates import Allowance
from flatout.tuning.trials import Found
from flatout_agent import wire

BENCH = Bench(Command(("python", "a.py"), None, "python", ("a.py",)), Path())
FACTS = wire.JobFacts("2.13.0", "3.11", "linux", "cuda", capability=(9, 0))
LATE = Trial(("cudnn-benchmark",), "cudnn-benchmark", why_untried="needs_start")
FOUND = Found(FACTS, Measurement(100.0, None, (), ()), trials=(LATE,), noise=0.01)


@pytest.mark.parametrize(
    ("left_s", "skip", "gain", "verdicts", "kept"),
    [
        (600.0, (), 1.5, [Verdict.KEPT], ["cudnn-benchmark"]),
        (600.0, (), 1.0, [Verdict.SLOWER], []),
        (1.0, (), 1.5, [Verdict.SKIPPED], []),
        (600.0, ("cudnn-benchmark",), 1.5, [], []),
    ],
)
def test_what_needs_a_start_has_its_duel_where_there_is_time(
    left_s: float,
    skip: tuple[str, ...],
    gain: float,
    verdicts: list[Verdict],
    kept: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fight(*_: Any, **named: Any) -> tuple[Side, Side]:
        assert named["against"] == ()
        return tuple(Side((ms,) * 4, (), Process()) for ms in (100.0, 100.0 / gain))  # type: ignore[return-value]

    monkeypatch.setattr(duel, "fight", fight)
    deadline = time.monotonic() + left_s
    rows, boosts = starts.try_starts(BENCH, FOUND, Allowance(skip=skip), Silent(), deadline)
    assert [row.verdict for row in rows] == verdicts
    assert [boost.id for boost in boosts] == kept
    assert [boost.gain for boost in boosts] == [pytest.approx(gain)] * len(kept)
