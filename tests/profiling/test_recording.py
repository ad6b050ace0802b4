"""A program run in the foreground and profiled: what comes back, or what is said where nothing can.

What the agent sees of a loop is tested in tests/agent/watch/profile/test_watch.py.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import forked
from flatout.nouns.anatomy import Kind
from flatout.nouns.errors import INTERRUPTED, UserError
from flatout.nouns.observer import Silent
from flatout.profiling import recording, records
from flatout.profiling.recording import ProfileSettings
from flatout.running.one import command
from flatout.running.one.command import Command
from flatout.running.one.foreground import Finished
from flatout.running.one.records import Process
from flatout_agent import wire

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parent.parent / "jobs"
TRACES = Path(__file__).parent.parent / "traces"
SLOW_DATA = """
import os, time, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.randn(64)

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for batch in DataLoader(Data(), 10):
    model(batch).mean().backward()
    optimizer.step()
    if os.path.exists("told"):
        open("done", "w").close()
        break
"""


def resolve(words: list[str], python: str | None = None) -> Command:
    return command.resolve(words, None, python or forked.python())


class Heard(Silent):
    def __init__(self) -> None:
        self.phases: list[str] = []
        self.steps: list[str] = []

    def phase(self, text: str) -> None:
        self.phases.append(text)

    def step(self, index: int, phase: str, wall_s: float) -> None:
        self.steps.append(phase)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def test_a_program_that_goes_on_is_told_of_before_it_ends(work: Path) -> None:
    (work / "train.py").write_text(SLOW_DATA)
    done_then: list[bool] = []
    heard = Heard()

    def tell(made: recording.Recorded) -> None:
        done_then.append((work / "done").exists())
        (work / "told").touch()

    settings = ProfileSettings(bench=False)
    recorded = recording.record(resolve(["train.py"]), settings, heard, tell)
    assert done_then == [False]
    assert (work / "done").exists(), "the program did not go on to its end"
    found = recorded.profile
    assert found.command == ("train.py",)
    anatomy = found.anatomy
    assert sum(part.ms for part in anatomy.parts) == pytest.approx(anatomy.step_ms, rel=0.01)
    assert anatomy.step_ms > 10
    assert anatomy.parts[0].kind is Kind.WAIT_DATA  # how large its share is the machine decides
    assert found.seen is not None and found.seen.wait_s > 0.01
    assert found.job is not None and found.job.loaders[0].num_workers == 0
    assert found.trace is not None
    assert recorded.folder is not None and recorded.folder.name.endswith("-profile")
    assert recorded.notes == ()
    assert set(heard.steps) >= {"warmup", "window", "record", "detail"}
    assert any("continues" in phase for phase in heard.phases)


SHORT = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
with open("runs.txt", "a") as file:
    file.write("run\\n")
for step in range(14):
    optimizer.zero_grad()
    model(torch.randn(256, 1024)).mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""


def test_a_short_program_is_run_again_with_what_it_saves_kept_apart(work: Path) -> None:
    (work / "train.py").write_text(SHORT)
    heard, reports = Heard(), []
    recorded = recording.record(
        resolve(["train.py"]), ProfileSettings(bench=False), heard, reports.append
    )
    assert any("took 14 steps: running it again" in phase for phase in heard.phases)
    assert reports == [recorded]
    assert any("takes 14 steps in all" in note for note in recorded.notes)
    profile = recorded.profile
    assert profile.anatomy.steps >= 2
    assert profile.host is not None and profile.host.steps >= 1
    assert any(operator.where is not None for operator in profile.operators)
    assert (work / "runs.txt").read_text() == "run\n", "the second run wrote over a file"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("few_steps", "ended after 2 steps: too few"),
        ("no_train", "imported torch but took no optimizer step"),
        ("no_torch", "never imported torch"),
    ],
)
def test_what_is_said_without_a_window(work: Path, name: str, says: str) -> None:
    python = sys.executable if name == "no_torch" else None
    job = resolve([str(JOBS / f"{name}.py")], python)
    with pytest.raises(UserError, match=says) as raised:
        recording.profile(job, ProfileSettings(bench=False))
    assert raised.value.exit_code == 1
    assert raised.value.next_step


def process(**seen: object) -> Process:
    found = Process(1, steps=[wire.StepTaken(39, "window", 0.1)])
    found.loop = wire.LoopSeen(**{"step_s": 0.1, "steps": 6, **seen})  # type: ignore[arg-type]
    return found


def ended(returncode: int, ctrl_c: bool = False) -> Finished:
    return Finished(returncode, (), True, ctrl_c=ctrl_c)


def test_ctrl_c_before_the_window_is_no_failure_of_the_program() -> None:
    """Some programs end with a code of their own then."""
    steps = [wire.StepTaken(index, "warmup", 0.1) for index in range(2)]
    error = records.why_not([Process(1, steps=steps)], ended(1, ctrl_c=True))
    assert error.message == "interrupted after 2 steps, before a window was recorded"
    assert (error.next_step, error.exit_code) == (None, INTERRUPTED)


def test_a_profiler_of_the_scripts_own_is_named() -> None:
    error = records.why_not([process(profiler=True)], ended(0))
    assert "own profiler" in error.message
    assert error.next_step is not None and "flatout profile trace.json" in error.next_step


def test_a_program_with_few_steps_or_none_is_told_what_it_did() -> None:
    steps = [wire.StepTaken(index, "warmup", 0.1) for index in range(2)]
    few = records.why_not([Process(1, steps=steps)], ended(0))
    assert "ended after 2 steps: too few" in few.message
    failed = records.why_not([Process(1, steps=steps)], ended(3))
    assert "failed after 2 steps (exit code 3)" in failed.message
    assert "never imported torch" in records.why_not([Process(1)], ended(0)).message
    end = wire.Ended("program", 0, 0, 0.0, 0.0, backwards=1)
    idle = records.why_not([Process(1, torch="2", ended=end)], ended(0))
    assert "called backward once, but no optimizer took a step" in idle.message
    assert "torch.optim" in str(idle.next_step)


def test_a_program_that_came_to_its_own_end_is_run_again_before_anything_is_told() -> None:
    recorded = process(trace="a")
    assert not records.ended_early([recorded])
    recorded.ended = wire.Ended("window", 40, 0, 1.0, 0.0)
    assert not records.ended_early([recorded])
    recorded.ended = wire.Ended("program", 40, 0, 1.0, 0.0)
    assert records.ended_early([recorded])


def test_a_profiler_that_was_on_throughout() -> None:
    on = process(profiler=True, profiler_where="train.py:3")
    assert records.profiled_throughout([on]) is on.loop
    assert records.profiled_throughout([process(trace="a"), on]) is None
    assert "(train.py:3)" in records.why_not([on], ended(0)).message


def test_the_lowest_rank_with_a_trace_leads() -> None:
    ranks = [process(trace="a"), process(trace="b"), process()]
    for item, rank in zip(ranks, (2, 1, 0), strict=True):
        item.rank = rank
    assert records.leading(ranks) is ranks[1]
    assert records.leading(ranks[2:]) is None
    assert records.traces(ranks) == (Path("a"), Path("b"))


def test_notes_say_what_is_missing() -> None:
    found = process(trace="a", steps=2, debug_variables=("NCCL_DEBUG=INFO",))
    found.faults = ["calls: TypeError"]
    told = records.notes([found], found, wire.ProfileOrders(steps=6))
    assert [word for word in ("2 steps", "no line", "NCCL_DEBUG=INFO", "TypeError")
            if any(word in note for note in told)] == [
        "2 steps", "no line", "NCCL_DEBUG=INFO", "TypeError",
    ]  # fmt: skip
    whole = process(trace="a", detail_trace="b")
    assert records.notes([whole], whole, wire.ProfileOrders(steps=6)) == ()


def test_a_gpus_job_whose_trace_holds_no_gpu_is_no_job_of_the_cpu(root: Path) -> None:
    """CUPTI was taken, or this torch was built without it."""
    found = process(trace=str(TRACES / "text_cpu.json.gz"))
    version = {"torch": "2.13.0", "python": "3.11", "system": "linux"}
    found.facts = wire.JobFacts(**version, device="cuda", device_name="NVIDIA H100")
    job = resolve([str(JOBS / "plain.py")])
    with pytest.raises(UserError, match="no work of NVIDIA H100") as raised:
        recording.profile_of(job, [found], ())
    assert "CUPTI" in (raised.value.next_step or "")
    found.facts = wire.JobFacts(**version, device="cpu")
    profile = recording.profile_of(job, [found], ())
    assert profile is not None
    assert profile.anatomy.device == "cpu"


def test_traces_that_exist(tmp_path: Path) -> None:
    recorded = recording.from_traces([TRACES / "a100_train.json.gz"])
    assert recorded.profile.anatomy.device == "cuda"
    assert recorded.profile.seen is None
    assert recorded.profile.ceilings == (), "measured here, and the trace is of another machine"
    one, other = tmp_path / "rank0.json.gz", tmp_path / "rank1.json.gz"
    shutil.copy(TRACES / "a100_nccl.json.gz", one)
    shutil.copy(TRACES / "a100_nccl.json.gz", other)
    ranks = recording.from_traces([one, other]).profile.ranks
    assert len(ranks) == 2
    assert ranks[0].busy_ms >= ranks[0].compute_ms > 0
