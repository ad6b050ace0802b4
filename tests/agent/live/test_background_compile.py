"""Copies of a process at work beside it: what they leave behind, and what they do not touch."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import forked
from flatout_agent.live import background_compile
from flatout_agent.live.background_compile import BackgroundCompile
from flatout_agent.live.state import Tick

SOURCE = Path(__file__).parents[3] / "src"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are made only on Linux")


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_compile, "usable_cores", lambda: 2)
    monkeypatch.setattr(background_compile, "spare_memory", lambda: 1 << 50)


@pytest.mark.usefixtures("roomy")
def test_where_it_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BackgroundCompile().possible("cpu")
    assert not BackgroundCompile().possible("cuda")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert not BackgroundCompile().possible("cpu"), "a process that has used a GPU is not copied"
    monkeypatch.undo()
    for name, value in (("usable_cores", 1), ("spare_memory", 1 << 20), ("spare_memory", None)):
        with monkeypatch.context() as patch:
            patch.setattr(background_compile, name, lambda value=value: value)
            assert not BackgroundCompile().possible("cpu"), name


def program(folder: Path, text: str) -> forked.Done:
    script = folder / "program.py"
    head = f"import sys\nsys.path.insert(0, {str(SOURCE)!r})\nimport torch\n"
    script.write_text(
        f"{head}from flatout_agent.live.background_compile import BackgroundCompile\n{text}"
    )
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    return forked.with_variables([str(script), str(folder)], folder, folder, variables)


QUIET = """
import atexit, os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *args: print("handled", flush=True))
atexit.register(lambda: print("cleaned up"))
print("begun", end=" ")  # not flushed: it must come out once
torch.set_num_threads(2)
torch.ones(1000, 1000) @ torch.ones(1000, 1000)  # OpenMP has threads
def work():
    print("from the copy", flush=True)
    os.write(2, b"from the copy")
    handler = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    value = float((torch.ones(1000, 1000) @ torch.ones(1000, 1000)).sum())
    (folder / "result").write_text(f"{handler} {torch.get_num_threads()} {value}")
    raise SystemExit(5)
side = BackgroundCompile()
side.begin(work)
while side.running:
    time.sleep(0.01)
print(torch.get_num_threads(), side.running, (folder / "result").read_text())
"""


@pytest.mark.slow
def test_a_copy_works_in_silence_and_goes(tmp_path: Path) -> None:
    done = program(tmp_path, QUIET)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "begun 2 False True 1 1000000000.0\ncleaned up\n"


def test_the_program_trains_on_until_the_copy_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setattr(background_compile, "usable_cores", lambda: 4)
    own_threads = torch.get_num_threads()
    torch.set_num_threads(4)
    side = BackgroundCompile()
    side.begin(lambda: wait_for(gate.exists))
    story = side.wait()
    next(story)
    for _ in range(3):
        story.send(Tick(0.5, 1, True))
    assert torch.get_num_threads() == 3, "one core is the copy's"
    gate.touch()
    wait_for(lambda: not side.running)
    with pytest.raises(StopIteration) as ended:
        story.send(Tick(0.5, 1, True))
    assert ended.value.value == (4, 2.0)
    assert torch.get_num_threads() == 4
    torch.set_num_threads(own_threads)


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["limit", "end"])
def test_one_that_takes_too_long_is_ended(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    side = BackgroundCompile()
    side.begin(signal.pause)
    (pid,) = side._pids
    assert side.running
    if how == "limit":
        monkeypatch.setattr(background_compile, "MOST_S", 0.0)
    else:
        side.end()
    assert not side.running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_program_that_waits_for_all_its_children_does_no_harm() -> None:
    side = BackgroundCompile()
    side.begin(lambda: None)
    os.waitpid(side._pids[0], 0)
    assert not side.running


ORPHAN = """
import os, signal
side = BackgroundCompile()
side.begin(signal.pause)
print(side._pids[0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_copy_ends_with_the_program(tmp_path: Path) -> None:
    done = program(tmp_path, ORPHAN)
    assert done.returncode == -signal.SIGKILL
    wait_for(lambda: gone(int(done.stdout)))


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


COMPILES = """
import time
from flatout_agent.boosts import compile as boost
from flatout_agent.job import Job
from flatout_agent.live import calls
from flatout_agent.live.background_compile import BackgroundCompile
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 4))
job = Job()
job.models.append(model)
x = torch.randn(8, 20)
recorded = calls.begin(model, (x,), {})
loss = model(x)
calls.finish(recorded, loss)
loss.square().sum().backward()
side = BackgroundCompile()
def work():
    applied = boost.apply(job, model, {})
    calls.again(recorded)
side.begin(work)
while side.running: time.sleep(0.01)
boost.apply(job, model, {})
model(x).square().sum().backward()
counters = torch._dynamo.utils.counters["inductor"]
print(counters["fxgraph_cache_hit"], counters["fxgraph_cache_miss"])
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_what_a_copy_compiles_the_program_finds(tmp_path: Path) -> None:
    done = program(tmp_path, COMPILES)
    assert done.returncode == 0, done.stderr
    hits, misses = map(int, done.stdout.split())
    assert hits >= 1, done.stderr
    assert misses == 0
