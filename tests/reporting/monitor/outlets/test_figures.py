"""The table of figures: complete, and each name once."""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import replace

import pytest

from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample, RankSample
from flatout.nouns.machine_sample import DiskSample, GpuSample, MachineSample
from flatout.reporting.monitor.outlets import figures
from flatout.reporting.monitor.outlets.prometheus import Meter
from flatout.reporting.monitor.outlets.prometheus import readings_of as readings
from monitored import FRAME

NOUNS = (MachineSample, GpuSample, JobSample, RankSample, DiskSample)
NUMBERS = (int, float, bool)
LEFT_OUT = {
    "MachineSample.time_s": "the time of all of a frame's figures",
    "GpuSample.index": "a label",
    "JobSample.pid": "part of the job's id, which is a label",
    "JobSample.ended_s": "the figures of a job that has ended stop",
    "RankSample.rank": "a label",
    "RankSample.steps_lost": "of the look, not of the job",
    "RankSample.pid": "part of the job's id, or of no use without its machine",
}
"""Number fields of the nouns that are not figures, and why."""


def numbers(noun: type) -> set[str]:
    hints = typing.get_type_hints(noun)
    kinds = {name: typing.get_args(hint) or (hint,) for name, hint in hints.items()}
    return {name for name, parts in kinds.items() if any(part in NUMBERS for part in parts)} & {
        field.name
        for field in dataclasses.fields(noun)
        if typing.get_origin(hints[field.name]) is not tuple
    }


@pytest.mark.parametrize("noun", NOUNS)
def test_every_number_is_a_figure_or_left_out_for_a_reason(noun: type) -> None:
    shown = {
        part.field for figure in figures.FIGURES if figure.noun is noun for part in figure.parts
    }
    left_out = {name.partition(".")[2] for name in LEFT_OUT if name.startswith(f"{noun.__name__}.")}
    assert numbers(noun) - shown == left_out
    assert shown <= {field.name for field in dataclasses.fields(noun)}


def test_a_name_means_one_figure_here_and_in_prometheus() -> None:
    for names in (
        [figure.name for figure in figures.FIGURES],
        [figure.prometheus for figure in figures.FIGURES],
    ):
        assert len(names) == len(set(names))


def test_what_is_not_known_is_not_there() -> None:
    machine = MachineSample(1.0, "node", gpus=(GpuSample(0, "nvidia"),))
    job = JobSample("1-1", "foreign", "node", "train.py", 1)
    named = {reading.figure.name for reading in readings(Frame(1.0, (machine,), (job,)))}
    assert named == {"flatout.train.state", "flatout.train.info"}


def values(frame: Frame, name: str) -> dict[frozenset[tuple[str, str]], float]:
    return {
        frozenset(reading.labels): reading.value
        for reading in readings(frame)
        if reading.figure.name == name
    }


def test_labels_and_scales_are_those_of_the_table() -> None:
    told = values(FRAME, "hw.errors").items()
    errors = {dict(labels)["error.type"]: value for labels, value in told}
    assert errors == {"ecc_uncorrected": 3.0, "xid_79": 2.0, "xid_31": 1.0}
    assert list(values(FRAME, "flatout.gpu.clock").values()) == [1.9e9]


def test_a_loss_that_is_nan_is_told_other_numbers_must_be_finite() -> None:
    job = replace(FRAME.jobs[0], loss=math.nan, step_s=math.nan)
    frame = replace(FRAME, jobs=(job,))
    (loss,) = values(frame, "flatout.train.loss").values()
    assert math.isnan(loss)
    assert values(frame, "flatout.train.step.duration") == {}


def test_of_a_job_that_has_ended_no_rate_is_told() -> None:
    job = replace(FRAME.jobs[0], state="ended", exit_code=1, ranks=FRAME.jobs[0].ranks)
    frame = replace(FRAME, jobs=(job,))
    told = {reading.figure.name for reading in readings(frame) if "train" in reading.figure.name}
    assert "flatout.train.exit_code" in told
    assert "flatout.train.step.duration" not in told
    assert not any("rank" in name for name in told)


def test_a_counter_does_not_fall_until_it_was_away() -> None:
    meter = Meter()

    def steps(step: int | None) -> list[float]:
        frame = Frame(1.0, jobs=(replace(FRAME.jobs[0], step=step, ranks=()),))
        found = meter.read(frame)
        return [r.value for r in found if r.figure.name == "flatout.train.step.count"]

    assert [steps(step) for step in (10, 3, 11, None, 2)] == [[10], [10], [11], [], [2]]


def test_the_same_figure_is_never_told_twice() -> None:
    twice = replace(FRAME, machines=FRAME.machines * 2, jobs=FRAME.jobs * 2)
    keys = [reading.key for reading in Meter().read(twice)]
    assert len(keys) == len(set(keys))


def test_only_alerts_that_fire_are_told() -> None:
    alert = FRAME.alerts[0]
    pending = replace(alert, code="X001", state="pending")
    frame = replace(FRAME, alerts=(alert, pending))
    (labels,) = values(frame, "flatout.alert")
    assert dict(labels) == {
        "code": "NAN001",
        "severity": "error",
        "flatout.job": "7-1",
        "subject": 'rank "0"\n',
        "state": "firing",
    }
