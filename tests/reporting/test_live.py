"""The lines of a run that is tuned while it trains."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from flatout.nouns.trial import Measurement, StepBlock, Trial, Verdict
from flatout.reporting import charts, html, live, outcome
from flatout.reporting.chart import CurveChart
from reporting import tuned_examples

KEPT = Trial(
    ("bf16-autocast",), "bf16-autocast", verdict=Verdict.KEPT, gain=1.42,
    interval=(1.38, 1.45), pairs=6, wall_s=3.1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (KEPT, "bf16-autocast on, 1.42x [1.38-1.45], 6 pairs, 3.1 s"),
        (
            dataclasses.replace(KEPT, boosts=("bf16-autocast", "gc-pause"), tried=None),
            "the recipe on, 1.42x [1.38-1.45], 6 pairs, 3.1 s: bf16-autocast, gc-pause",
        ),
        (
            dataclasses.replace(
                KEPT, verdict=Verdict.SLOWER, tried="allocator", gain=0.9, interval=(0.8, 0.97),
                params={"malloc": "glibc-keep"},
            ),
            "allocator malloc=glibc-keep off, 0.90x [0.80-0.97], 6 pairs, 3.1 s",
        ),
        (
            dataclasses.replace(KEPT, verdict=Verdict.SLOWER, gain=1.1, interval=(0.9, 1.35)),
            "bf16-autocast off, no clear gain, 1.10x [0.90-1.35], 6 pairs, 3.1 s",
        ),
        (
            dataclasses.replace(
                KEPT, verdict=Verdict.SLOWER, gain=None, interval=None, pairs=1,
                reason="too noisy to say in 1 pair",
            ),
            "bf16-autocast off, too noisy to say in 1 pair",
        ),
        (
            Trial((), "channels-last", verdict=Verdict.DIFFERENT, reason="gradient error 3 %"),
            "channels-last off, learns differently, gradient error 3 %",
        ),
        (
            Trial((), "compile", verdict=Verdict.FAILED, reason="RuntimeError: no compiler"),
            "compile off, failed, RuntimeError: no compiler",
        ),
        (
            Trial((), "fast-dropout", verdict=Verdict.SLOWER, reason="beside the others slower"),
            "fast-dropout off, beside the others slower",
        ),
    ],
)  # fmt: skip
def test_each_decision_is_one_line(trial: Trial, words: str) -> None:
    assert live.decision_words(trial) == words


def test_what_does_not_apply_gets_no_line() -> None:
    shown = io.StringIO()
    live.decision(Trial((), "tf32", reason="needs a GPU"), Console(file=shown))
    assert shown.getvalue() == ""
    together = dataclasses.replace(KEPT, gain=None, interval=None)
    live.decision(together, Console(file=shown))
    assert shown.getvalue() == "", "the line of the recipe names it"
    live.decision(KEPT, Console(file=shown))
    assert shown.getvalue().startswith("flatout: bf16-autocast on")


def tuned(**changes: object):
    blocks = (
        StepBlock(1, 8, 100.0),
        StepBlock(9, 8, 51.0, ("bf16-autocast",)),
        StepBlock(17, 8, 50.0, ("bf16-autocast",)),
    )
    good = tuned_examples.good()
    assert good.plan is not None
    values = {
        "confirmation": None,
        "baseline": Measurement(100.0, None, (), ()),
        "best": Measurement(50.0, None, (), ()),
        "blocks": blocks,
        "live": True,
        "saved_s": 192.0,
        **changes,
    }
    return dataclasses.replace(good, **values)


def test_the_closing_lines_tell_gain_time_saved_and_files() -> None:
    lines = [line for line, _ in live.closing_lines(tuned(plan_path="flatout.toml"))]
    assert lines[0].startswith("2.00x faster: 100 ms a step as written, 50.0 ms now")
    assert "this run took about 3 min 12 s less" in lines[0]
    assert "plan: flatout.toml (the next `flatout run` starts with it)" in lines


def test_the_report_shows_the_run_with_its_switches() -> None:
    chart = charts.charts(tuned())["run"]
    assert isinstance(chart, CurveChart)
    assert chart.curves[0].name == "as written"
    assert [mark.low for mark in chart.marks] == [9], "the switch is marked"
    page = html.render(tuned(), Path())
    assert "While it trained" in page
    assert outcome.headline(tuned()).answer is outcome.TuneOutcome.LIVE
