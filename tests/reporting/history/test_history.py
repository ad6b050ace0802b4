"""The report of a run, from frames as they are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from flatout.nouns.alert import Alert
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample, PulseStep
from flatout.nouns.machine_sample import GpuSample, MachineSample
from flatout.nouns.ranks import Scaling, ScalingRow
from flatout.reporting.history import charts, page, screen, series, words

TRIAL = Scaling(
    8,
    4,
    40.0,
    (
        ScalingRow(2, 21.0, 1.9, (1.8, 2.0)),
        ScalingRow(4, 16.0, 2.5, (2.3, 2.6)),
        ScalingRow(8, error="not tried"),
    ),
)
NAN = Alert(
    code="NAN001",
    id="loss-not-finite",
    severity=Severity.ERROR,
    state="firing",
    since_s=1030.0,
    fired_s=1030.0,
    title="the loss is NaN",
    evidence="2 losses <in a row>",
    cure=Cure("Lower the learning rate.", ("flatout explain NAN001",)),
    hostname="node",
    job="7-1",
)


def frames(count: int, gpus: bool = False) -> Iterator[Frame]:
    for second in range(count):
        step = PulseStep(second + 1, 1000.0 + second, 0.5, 0.1, 2.0 / (second + 1), 32)
        job = JobSample(
            id="7-1",
            state="training",
            hostname="node",
            program="train.py --name <b>x</b>",
            pid=7,
            began_s=1000.0,
            step=second + 1,
            step_s=0.5,
            wait_share=0.2,
            samples_per_s=64.0,
            loss=2.0 / (second + 1),
            memory_bytes=2**30,
            gpus=(1,) if gpus else (),
            recent_steps=(step,),
        )
        cards = tuple(GpuSample(i, "nvidia", utilization=0.4 * i, power_w=300.0) for i in range(2))
        machine = MachineSample(1000.0 + second, "node", gpus=cards if gpus else ())
        alerts = (NAN,) if second > 30 else ()
        yield Frame(1000.0 + second, (machine,), (job,), alerts)


def ended(count: int, code: int) -> Iterator[Frame]:
    *before, last = frames(count)
    yield from before
    job = replace(last.jobs[0], state="ended", exit_code=code, ended_s=1000.0 + count)
    yield replace(last, jobs=(job,))


def test_what_a_run_was() -> None:
    history = series.of(ended(60, 0))
    assert history is not None
    assert words.headline(history) == "Ended well: 60 steps in 1 min 00 s"
    assert dict(words.facts(history))["Time per step"] == "500 ms"
    assert [alert.code for alert in history.alerts] == ["NAN001"]
    assert history.losses[0] == (1, 2.0)
    assert set(charts.charts(history)) == {"losses", "steps", "wait", "memory"}


def test_the_trial_of_its_ranks(tmp_path: Path) -> None:
    history = series.of(frames(60))
    assert history is not None
    (chart,) = set(charts.charts(history, TRIAL)) - set(charts.charts(history))
    drawn = charts.charts(history, TRIAL)[chart]
    assert "4 ranks are 2.50x as fast" in drawn.title
    best, measured = drawn.curves
    assert (best.x, best.y) == ([1, 2, 4], [1.0, 2.0, 4.0])
    assert measured.bounds == [(1.0, 1.0), (1.8, 2.0), (2.3, 2.6)]
    page.write(history, tmp_path / "history.html", TRIAL)
    assert "4 ranks are 2.50x" in (tmp_path / "history.html").read_text(encoding="utf-8")
    assert words.document(history, "page", TRIAL)["ranks_trial"]["rows"][1]["size"] == 4
    failed = Scaling(8, None, 40.0, TRIAL.rows[2:], "could not be measured")
    assert set(charts.charts(history, failed)) == set(charts.charts(history))


def test_an_end_by_an_error_and_none_at_all() -> None:
    failed, cut = series.of(ended(5, 137)), series.of(frames(5))
    assert failed is not None
    assert cut is not None
    assert words.headline(failed).startswith("Failed with exit code 137")
    assert words.headline(cut).startswith("Not ended when last seen")
    assert series.of(iter(())) is None
    assert series.of(frames(3), "another") is None


def test_a_long_run_keeps_its_ends() -> None:
    history = series.of(frames(5000))
    assert history is not None
    assert len(history.moments) == series.MOST_POINTS
    assert history.losses[0][0] == 1
    assert history.losses[-1][0] == 5000


def test_the_page_escapes_what_comes_from_outside(tmp_path: Path) -> None:
    history = series.of(ended(60, 0))
    assert history is not None
    page.write(history, tmp_path / "history.html")
    text = (tmp_path / "history.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;x&lt;/b&gt;" in text
    assert "<b>x</b>" not in text
    assert "2 losses &lt;in a row&gt;" in text
    assert "flatout explain NAN001" in text


def test_the_lines_in_a_terminal() -> None:
    console = Console(width=80, no_color=True, record=True, file=None)
    history = series.of(ended(60, 0))
    assert history is not None
    with console.capture() as capture:
        screen.shown(history, Path("history.html"), console)
    assert "Ended well: 60 steps" in capture.get()
    assert "NAN001: the loss is NaN" in capture.get()
    assert "report: history.html" in capture.get()
