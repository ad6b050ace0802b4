"""The history of a run: within its bounds whatever comes, and read as it was written."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns import frame_json
from flatout.nouns.alert import Alert
from flatout.nouns.errors import UserError
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample, PulseStep
from flatout.nouns.machine_sample import GpuSample, MachineSample
from flatout.watching.recording import NAME, HistoryRecording
from flatout.watching.recording import frames as frames_of

JOB = JobSample(id="7-1", state="training", hostname="node", program="train.py", pid=7, step=5)
ALERT = Alert("NAN001", "x", Severity.ERROR, "firing", 1.0, "t", "e", Cure("c", ("a",)))


def frame(second: float, job: JobSample = JOB, *alerts: Alert) -> Frame:
    machine = MachineSample(second, "node", gpus=(GpuSample(0, "nvidia", utilization=0.5),))
    return Frame(second, (machine,), (job,), alerts)


def test_what_is_recorded_is_replayed(tmp_path: Path) -> None:
    recording = HistoryRecording(tmp_path)
    lost = replace(JOB, loss=math.nan, recent_steps=(PulseStep(5, 1.0, 0.1, 0.0, math.inf, 32, 1),))
    frames = [frame(1.0), frame(2.0, lost, ALERT)]
    for shown in frames:
        recording.add(shown)
    first, second = frames_of(tmp_path)
    assert first == frames[0]
    assert second.alerts == (ALERT,)
    assert math.isnan(second.jobs[0].loss or 0)
    assert second.jobs[0].recent_steps[0].loss == math.inf
    assert [f.time_s for f in frames_of(tmp_path / NAME)] == [1.0, 2.0]


@pytest.mark.slow
def test_it_stays_within_its_bound_and_keeps_begin_and_end(tmp_path: Path) -> None:
    recording = HistoryRecording(tmp_path, most_bytes=40_000)
    for second in range(3000):
        recording.add(frame(1000.0 + second))
        assert (tmp_path / NAME).stat().st_size <= 40_000
    times = [shown.time_s for shown in frames_of(tmp_path)]
    assert times == sorted(times)
    assert times[0] < 1600
    assert times[-1] == 3999.0
    assert list(tmp_path.iterdir()) == [tmp_path / NAME]


def test_after_ten_minutes_one_in_ten_seconds_is_left(tmp_path: Path) -> None:
    recording = HistoryRecording(tmp_path)
    for second in range(1300):
        recording.add(frame(float(second)))
    times = [shown.time_s for shown in frames_of(tmp_path)]
    assert 60 <= sum(time_s < 600 for time_s in times) <= 70
    assert sum(time_s >= 700 for time_s in times) == 600


def test_where_nothing_can_be_written_there_is_none(tmp_path: Path) -> None:
    recording = HistoryRecording(tmp_path / "gone")
    recording.add(frame(1.0))
    recording.add(frame(2.0))
    assert list(tmp_path.iterdir()) == []


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    HistoryRecording(tmp_path).add(frame(1.0))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"schema": "flatout.monitor/1", "time\n\xff\xfe\n{"schema": "x/1"}\n[]\n')
    assert [shown.time_s for shown in frames_of(tmp_path)] == [1.0]


def test_no_history_is_an_error_for_the_user(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no history"):
        list(frames_of(tmp_path))
    (tmp_path / NAME).write_text("junk\n")
    with pytest.raises(UserError, match="no frame"):
        list(frames_of(tmp_path))


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"schema": "flatout.monitor/2", "time_s": 1.0}) + "\n")
    with pytest.raises(UserError, match="newer flatout"):
        list(frames_of(tmp_path))


floats = st.floats(allow_nan=False, allow_infinity=False)
jobs = st.builds(
    JobSample,
    id=st.text(max_size=8),
    state=st.sampled_from(["training", "ended", "foreign"]),
    hostname=st.text(max_size=8),
    program=st.text(max_size=20),
    pid=st.integers(0, 2**22),
    step=st.one_of(st.none(), st.integers(0, 2**40)),
    loss=st.one_of(st.none(), st.floats(allow_nan=False)),
    step_s=st.one_of(st.none(), floats),
    gpus=st.lists(st.integers(0, 7), max_size=3).map(tuple),
)


@given(st.lists(jobs, max_size=3), floats, st.booleans())
def test_any_frame_comes_back_from_json(some: list[JobSample], time_s: float, lean: bool) -> None:
    shown = Frame(time_s, (), tuple(some))
    text = json.dumps(frame_json.dump(shown, lean), allow_nan=False)
    loaded = frame_json.load(json.loads(text))
    if not lean:
        assert loaded == shown
    assert [job.loss for job in loaded.jobs] == [job.loss for job in some]
