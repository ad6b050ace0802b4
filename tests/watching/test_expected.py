"""The number of a run's steps, learnt from an earlier run of the same program."""

from __future__ import annotations

from pathlib import Path

from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample
from flatout.watching.job_watch import steps_before
from flatout.watching.recording import NAME, HistoryRecording, last_frame


def ended(folder: Path, steps: int, program: str = "train.py", exit_code: int = 0) -> None:
    folder.mkdir(parents=True)
    recording = HistoryRecording(folder)
    for step in (1, steps):
        job = JobSample("1", "ended", "node", program, 7, exit_code=exit_code, step=step)
        recording.add(Frame(100.0 + step, jobs=(job,)))


def test_the_last_run_that_ended_well_tells(tmp_path: Path) -> None:
    ended(tmp_path / "20260101T000000Z-run", 100)
    ended(tmp_path / "20260102T000000Z-run", 200)
    ended(tmp_path / "20260103T000000Z-run", 50, exit_code=1)
    ended(tmp_path / "20260104T000000Z-run", 70, program="train.py --epochs 3")
    (tmp_path / "20260105T000000Z-run").mkdir()
    own = tmp_path / "20260106T000000Z-run"
    own.mkdir()
    assert steps_before(own, "train.py") == 200
    assert steps_before(own, "other.py") is None
    assert steps_before(tmp_path / "absent" / "run", "train.py") is None


def test_a_damaged_end_of_a_history_is_passed_over(tmp_path: Path) -> None:
    ended(tmp_path / "run", 30)
    with (tmp_path / "run" / NAME).open("ab") as file:
        file.write(b'{"time_s": 1, "jo')
    frame = last_frame(tmp_path / "run")
    assert frame is not None
    assert frame.jobs[0].step == 30
