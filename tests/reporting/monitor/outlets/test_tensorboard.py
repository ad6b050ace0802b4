"""The event files, read by TensorBoard's own accumulator."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample, PulseStep
from flatout.reporting.monitor.outlets import tensorboard
from flatout.reporting.monitor.outlets.meter import of_gpu
from monitored import FRAME, GPU, MACHINE

JOB = replace(FRAME.jobs[0], recent_steps=())
RANK = JOB.ranks[0]
BEGAN_S = 1_795_506_000.0
LOSS, DURATION = "flatout.train.loss", "flatout.train.step.duration"
WAIT, SAMPLES = "flatout.train.wait", "flatout.train.samples"
Series = list[tuple[int, float, float]]


def step(number: int, loss: float | None = None) -> PulseStep:
    loss = 10.0 / number if loss is None else loss
    return PulseStep(number, BEGAN_S + number / 4, 0.25, number / 1000, loss, 32)


def frame(*jobs: JobSample, time_s: float = BEGAN_S) -> Frame:
    return Frame(time_s, jobs=jobs)


def did(job: JobSample, numbers: Iterable[int]) -> JobSample:
    return replace(job, recent_steps=tuple(map(step, numbers)))


def write(folder: Path, *frames: Frame) -> None:
    def warn(text: str) -> None:
        raise AssertionError(text)

    with tensorboard.writing(folder, warn) as writer:
        for each in frames:
            writer.tell(each)


def runs(folder: Path) -> list[str]:
    files = folder.rglob("events.out.tfevents.*")
    return sorted({path.parent.relative_to(folder).as_posix() for path in files})


def read(folder: Path, tag: str) -> Series:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [(event.step, event.wall_time, event.value) for event in accumulator.Scalars(tag)]


def single(value: float) -> float:
    return float(np.float32(value))


def test_a_jobs_steps(tmp_path: Path) -> None:
    write(tmp_path, frame(did(JOB, range(1, 6))), frame(did(JOB, range(6, 9))))
    assert runs(tmp_path) == ["node1/train-7-1"]
    run = tmp_path / "node1/train-7-1"
    steps = [step(number) for number in range(1, 9)]
    assert read(run, LOSS) == [(s.step, s.time_s, single(s.loss or 0)) for s in steps]
    assert read(run, DURATION) == [(s.step, s.time_s, 0.25) for s in steps]
    assert read(run, WAIT) == [(s.step, s.time_s, single(s.wait_s / 0.25)) for s in steps]
    assert [(number, value) for number, _, value in read(run, SAMPLES)] == [(5, 640), (8, 640)]


def test_each_step_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        frame(did(JOB, range(1, 6))),
        frame(did(JOB, range(1, 6))),
        frame(did(JOB, range(3, 8))),  # a node that was reached again tells what it has
        frame(JOB),
        frame(did(JOB, (7, 9, 12))),
    )
    found = read(tmp_path / "node1/train-7-1", LOSS)
    assert [number for number, _, _ in found] == [1, 2, 3, 4, 5, 6, 7, 9, 12]


def test_another_monitor_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    write(tmp_path, frame(did(JOB, range(1, 6))))
    write(tmp_path, frame(did(JOB, range(1, 9))), frame(did(JOB, (9,))))
    assert len(list((tmp_path / "node1/train-7-1").iterdir())) == 2
    found = read(tmp_path / "node1/train-7-1", LOSS)
    assert [number for number, _, _ in found] == list(range(1, 10))


def test_what_was_cut_off_is_gone_on_from(tmp_path: Path) -> None:
    write(tmp_path, frame(did(JOB, range(1, 6))))
    (file,) = (tmp_path / "node1/train-7-1").iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    write(tmp_path, frame(did(JOB, range(1, 9))))
    newest = max((tmp_path / "node1/train-7-1").iterdir())
    (tmp_path / "other").mkdir()
    newest.rename(tmp_path / "other" / newest.name)
    assert [number for number, _, _ in read(tmp_path / "other", LOSS)] == [5, 6, 7, 8]


@pytest.mark.parametrize("damage", [b"\xff" * 40, b"\x04" + bytes(11) + b"\xff" * 8])
def test_what_is_damaged_is_gone_on_from(damage: bytes, tmp_path: Path) -> None:
    write(tmp_path, frame(did(JOB, range(1, 6))))
    (file,) = (tmp_path / "node1/train-7-1").iterdir()
    file.write_bytes(file.read_bytes() + damage)
    write(tmp_path, frame(did(JOB, range(4, 9))))
    newest = max((tmp_path / "node1/train-7-1").iterdir())
    (tmp_path / "other").mkdir()
    newest.rename(tmp_path / "other" / newest.name)
    assert [number for number, _, _ in read(tmp_path / "other", LOSS)] == [6, 7, 8]


def test_two_jobs_on_two_machines(tmp_path: Path) -> None:
    second = replace(JOB, id="8-1", program="/x/deep net.py -e 1")
    merged = replace(JOB, id="node2:7-1", hostname="node2")
    write(tmp_path, frame(did(JOB, (1,)), did(second, (2,)), did(merged, (3,))))
    assert runs(tmp_path) == ["node1/deep-8-1", "node1/train-7-1", "node2/train-7-1"]
    assert [read(tmp_path / run, LOSS)[0][0] for run in runs(tmp_path)] == [2, 1, 3]


def test_a_job_that_is_started_again_is_another_run(tmp_path: Path) -> None:
    again = replace(JOB, id="9-2", pid=9, ranks=(replace(RANK, pid=9),))
    write(tmp_path, frame(did(JOB, range(1, 5))), frame(did(again, range(1, 3))))
    assert runs(tmp_path) == ["node1/train-7-1", "node1/train-9-2"]
    assert len(read(tmp_path / "node1/train-9-2", LOSS)) == 2


def test_processes_that_a_job_starts_again_are_a_run_each(tmp_path: Path) -> None:
    again = replace(JOB, ranks=(replace(RANK, pid=70),))
    write(tmp_path, frame(did(JOB, range(1, 5))), frame(did(again, range(1, 3))))
    assert runs(tmp_path) == ["node1/train-7-1", "node1/train-7-1-2"]
    # Another monitor knows which is which.
    write(tmp_path, frame(did(again, range(1, 4))), frame(did(JOB, range(3, 7))))
    assert runs(tmp_path) == ["node1/train-7-1", "node1/train-7-1-2"]
    assert [n for n, _, _ in read(tmp_path / "node1/train-7-1", LOSS)] == [1, 2, 3, 4, 5, 6]
    assert [n for n, _, _ in read(tmp_path / "node1/train-7-1-2", LOSS)] == [1, 2, 3]


def test_losses_that_are_not_finite_or_not_read(tmp_path: Path) -> None:
    losses = (math.nan, math.inf, -math.inf, 1.5)
    steps = [step(number, loss) for number, loss in enumerate(losses, 1)]
    steps.append(replace(step(5), loss=None, duration_s=0.0))
    write(tmp_path, frame(replace(JOB, recent_steps=tuple(steps), samples_per_s=None)))
    run = tmp_path / "node1/train-7-1"
    values = [value for _, _, value in read(run, LOSS)]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, 1.5]
    assert len(read(run, DURATION)) == 5
    assert len(read(run, WAIT)) == 4
    with pytest.raises(KeyError):
        read(run, SAMPLES)


def test_a_gpus_figures_by_time(tmp_path: Path) -> None:
    hot = replace(GPU, index=1, temperature_c=88.0)
    later = replace(MACHINE, gpus=(replace(GPU, power_w=650.0), hot))
    moments = [(BEGAN_S, MACHINE), (BEGAN_S + 0.5, MACHINE), (BEGAN_S + 1.25, later)]
    write(tmp_path, *(Frame(time_s, (machine,)) for time_s, machine in moments))
    assert runs(tmp_path) == ["node1/gpu0", "node1/gpu1"]
    run = tmp_path / "node1/gpu0"
    assert read(run, "hw.power") == [
        (int(BEGAN_S), BEGAN_S, 600.0),
        (int(BEGAN_S) + 1, BEGAN_S + 1.25, 650.0),
    ]
    for figure, labels, value in of_gpu(GPU):
        tag = "/".join((figure.name, *(word for _, word in labels)))
        assert read(run, tag)[0][2] == single(value)
    assert read(run, "hw.errors/xid_79")[0][2] == 2
    assert [value for _, _, value in read(tmp_path / "node1/gpu1", "hw.temperature")] == [88]


def test_units_are_in_the_descriptions(tmp_path: Path) -> None:
    write(tmp_path, replace(FRAME, jobs=(did(JOB, (1, 2)),)))
    accumulator = EventAccumulator(str(tmp_path / "node1/gpu0"))
    accumulator.Reload()
    metadata = accumulator.SummaryMetadata("hw.power")
    assert metadata.summary_description == "Power drawn. In W."
    assert metadata.plugin_data.plugin_name == "scalars"


def test_a_folder_in_which_nothing_can_be_written(tmp_path: Path) -> None:
    warnings: list[str] = []
    with tensorboard.writing(tmp_path, warnings.append) as writer:
        (tmp_path / "node1").write_text("in the way")
        writer.tell(frame(did(JOB, (1,))))
        writer.tell(frame(did(JOB, (2,))))
        wait_for(writer)
        (tmp_path / "node1").unlink()
        writer.tell(frame(did(JOB, (3,))))
        wait_for(writer)
        (file,) = (tmp_path / "node1/train-7-1").iterdir()
        file.unlink()
        file.mkdir()
        writer.tell(frame(did(JOB, (4,))))
        wait_for(writer)
        writer.tell(frame(did(JOB, (5,))))
        wait_for(writer)
        file.rmdir()
    assert [text.partition(":")[0] for text in warnings] == [f"--tensorboard {tmp_path} failed"] * 2
    assert [number for number, _, _ in read(tmp_path / "node1/train-7-1", LOSS)] == [5]


def wait_for(writer: tensorboard.TensorboardWriter) -> None:
    """Until the writer has nothing to do: it takes a frame that brings nothing last."""
    for _ in range(2):
        writer.tell(Frame(BEGAN_S))
    deadline = time.monotonic() + 120.0
    while writer._frames.qsize() > 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_disk_that_is_slow_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "MOST_WAITING", 3)
    monkeypatch.setattr(tensorboard.TensorboardWriter, "_run", lambda _: None)
    with tensorboard.writing(tmp_path, print) as writer:
        for number in range(1, 10):
            writer.tell(frame(did(JOB, (number,))))
        assert writer._frames.qsize() == 3


def test_neither_torch_nor_tensorflow_is_imported(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})

class Wall:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] not in ("torch", "tensorflow"), name

sys.meta_path.insert(0, Wall())
from pathlib import Path
from flatout.reporting.monitor.outlets import tensorboard
from monitored import FRAME
with tensorboard.writing(Path({str(tmp_path)!r}), print) as writer:
    writer.tell(FRAME)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert runs(tmp_path) == ["node1/gpu0", "node1/train-7-1"]


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="cannot be made"),
        tensorboard.writing(tmp_path / "file" / "logs", print),
    ):
        pass


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with (
        pytest.raises(UserError, match="needs the package") as caught,
        tensorboard.writing(tmp_path / "logs", print),
    ):
        pass
    assert caught.value.next_step == "pip install 'flatout[tensorboard]'"
    assert not (tmp_path / "logs").exists()
