"""The parts of a profiled run one by one, in this process."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatout_agent.watch import places
from flatout_agent.watch.calls import Calls
from flatout_agent.watch.loop_record import Step
from flatout_agent.watch.profile.counting import flop_counter as counter
from flatout_agent.watch.profile.loop import CallSite
from flatout_agent.watch.profile.loop import KeptLosses as Losses
from flatout_agent.watch.profile.process import Collections, worker_cpu_s
from flatout_agent.watch.profile.recording import ProfilerRecording, other_profiler
from flatout_agent.watch.profile.seen import (
    after_epoch,
    calling_site,
    debug_variables,
    steps_between,
    undisturbed_s,
)
from flatout_agent.watch.profile.seen import tracing_tools as tracers


@pytest.fixture
def calls():
    watched = Calls()
    watched.install(outside_compiled=True)
    yield watched
    watched.remove()


def test_a_call_that_raises_raises_the_same(calls: Calls) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        open("no such file")  # noqa: SIM115
    assert raised.value.filename == "no such file"
    with pytest.raises(RuntimeError, match="elements cannot be converted"):
        torch.ones(2).item()
    assert torch.tensor([1, 2]).tolist() == [1, 2]
    assert calls.active


def test_hooks_that_stay_are_counted(calls: Calls) -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(6):
        layer.register_forward_hook(lambda *_: None)
        layer.register_forward_pre_hook(lambda *_: None).remove()
        layer(torch.ones(1, 2)).register_hook(lambda gradient: gradient)  # goes with its tensor
        layer.weight.register_hook(lambda gradient: gradient)
        optimizer.register_step_post_hook(lambda *_: None)
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    there = [call for call in calls.summary(2) if call.name == "hook" and call.calls]
    assert sorted((call.detail, call.calls) for call in there) == [
        ("Linear", 3.0),
        ("Parameter", 3.0),
        ("SGD", 3.0),
    ]
    (groups,) = (c for c in calls.summary(2) if c.name == "Optimizer.add_param_group")
    assert (groups.calls, groups.detail) == (3.0, "SGD")


def test_a_watched_function_binds_to_no_instance(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")

    class Reader:
        opener = open

    with Reader().opener(tmp_path / "file") as file:
        assert file.read() == "text"


def test_a_bound_one_goes_on_working_and_notes_nothing(calls: Calls) -> None:
    item, make = torch.Tensor.item, torch.tensor
    calls.remove()
    count = len(calls.entries)
    assert item(make(2.0)) == 2.0
    assert len(calls.entries) == count


def test_other_threads_are_not_the_loop(calls: Calls) -> None:
    thread = threading.Thread(target=lambda: torch.ones(1).item())
    thread.start()
    thread.join()
    assert not any(name == "Tensor.item" for name, _ in calls.entries)


def test_what_flatout_does_itself_is_not_noted(calls: Calls) -> None:
    with calls.paused():
        torch.ones(1)
    assert not calls.entries
    torch.ones(1)
    assert len(calls.entries) == 1


def test_the_innermost_line_of_the_user(tmp_path: Path) -> None:
    inner = tmp_path / "lib" / "python3" / "site-packages" / "package.py"
    inner.parent.mkdir(parents=True)
    code = compile("def through(call):\n    return call()", str(inner), "exec")
    package: dict[str, object] = {"places": places}
    exec(code, package)
    user = compile(
        "def loop(through, where):\n\n    return through(where)", str(tmp_path / "u.py"), "exec"
    )
    program: dict[str, object] = {}
    exec(user, program)
    assert program["loop"](package["through"], places.where) == f"{tmp_path / 'u.py'}:3"


def test_losses_that_are_kept_and_those_that_are_not() -> None:
    weight = torch.ones(2, requires_grad=True)
    for keep in (True, False):
        losses, kept = Losses(), []
        for step in range(8):
            loss = (weight * step).sum()
            losses.saw(loss, step)
            loss.backward()
            if keep:
                kept.append(loss)
        assert losses.kept(8) is keep


def test_flops_are_not_counted_inside_a_mode_of_the_script() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert counter([torch.nn.Linear(2, 2)]) is None
    assert counter([]) is None


def test_a_recording_and_its_marks(tmp_path: Path) -> None:
    recording = ProfilerRecording("cpu", steps=2, warmup=1, detail=False)
    recording.start()
    assert other_profiler() or not recording.recording
    for _ in range(3):
        torch.ones(2).sum()
        over = recording.step()
    assert over
    assert recording.recorded == 2
    path = Path(recording.save(str(tmp_path / "times")))
    assert path.name == "times.json.gz"
    assert list(tmp_path.iterdir()) == [path]
    assert not other_profiler()


@pytest.mark.slow
def test_a_collection_that_runs_counts_so_far() -> None:
    def noting(phase: str, info: dict[str, int]) -> None:
        noted[phase] = collections.so_far_s()

    noted: dict[str, float] = {}
    collections = Collections()
    gc.callbacks.append(noting)  # called after the one that counts
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(noting)
        collections.remove()
    gc.collect()  # no longer counted
    assert 0 < noted["start"] < noted["stop"] == collections.s == collections.so_far_s()
    assert collections.runs == 1


def test_processes_that_are_gone_have_no_cpu_time() -> None:
    import os
    import sys

    found = worker_cpu_s([os.getpid(), 2**22 + 1])
    assert list(found) == ([os.getpid()] if sys.platform == "linux" else [])
    assert all(seconds > 0 for seconds in found.values())


@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0, 0.5), st.booleans()), min_size=1))
def test_step_times_are_means_without_evaluation(steps: list[tuple[float, float, bool]]) -> None:
    watched = [Step(wall_s=a + b, eval_s=b, epoch=epoch) for a, b, epoch in steps]
    undisturbed = undisturbed_s(watched, [Step(wall_s=0.5)])
    counted = [a for a, _, epoch in steps if not epoch] or [a for a, _, _ in steps]
    assert undisturbed == pytest.approx(sum(counted) / len(counted))
    both = undisturbed_s(watched, [Step(wall_s=0.5, epoch=True)])
    assert both == pytest.approx(sum(a for a, _, _ in steps) / len(steps))


def test_debug_variables_that_cost_something() -> None:
    environ = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "WARN", "TORCH_LOGS": "", "HOME": "/"}
    assert debug_variables(environ) == ("CUDA_LAUNCH_BLOCKING=1",)


def test_what_traces_python() -> None:
    def follow(frame: object, event: str, argument: object) -> None:
        """As a debugger does."""

    before = sys.gettrace()
    try:
        tracemalloc.start(3)
        sys.settrace(follow)
        names = tracers()
    finally:
        sys.settrace(before)
        tracemalloc.stop()
    assert names[:2] == ("tracemalloc (3 frames)", f"sys.settrace ({__name__})")
    assert "tracemalloc" not in str(tracers())


@pytest.mark.gpu
def test_a_recording_on_a_gpu(tmp_path: Path) -> None:
    import gzip
    import json

    weight = torch.randn(256, 256, device="cuda")
    recording = ProfilerRecording("cuda", steps=2, warmup=1, detail=True)
    recording.start()
    for _ in range(3):
        weight @ weight
        torch.cuda.synchronize()
        recording.step()
    with gzip.open(recording.save(str(tmp_path / "detail")), "rt") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event.get("cat") == "kernel" for event in events) >= 2


@pytest.mark.gpu
def test_calls_that_wait_for_a_gpu_say_so(calls: Calls) -> None:
    torch.ones(1, device="cuda").item()
    (entry,) = [entry for (name, _), entry in calls.entries.items() if name == "Tensor.item"]
    assert entry.detail == "cuda"


def test_steps_from_one_evaluation_to_the_next() -> None:
    tested = [step % 3 == 2 for step in range(12)]
    assert steps_between([Step(tested=test) for test in tested]) == 3
    assert steps_between([Step(), Step(tested=True), Step()]) is None


def site(line: int, function: str) -> CallSite:
    return CallSite("train.py", line, function)


@pytest.mark.parametrize(
    ("inner", "training", "line"),
    [
        ([site(53, "evaluate"), site(72, "<module>")], [site(69, "<module>")], 72),
        ([site(40, "fit")], [site(30, "step"), site(38, "fit")], 40),
        ([site(20, "validation_step"), site(90, "main")],
         [site(12, "training_step"), site(90, "main")], 20),
        ([site(20, "score"), site(60, "validate"), site(90, "main")], [site(90, "main")], 60),
        ([site(20, "score")], [site(30, "step")], None),
        ([], [site(30, "step")], None),
    ],
)  # fmt: skip
def test_where_the_training_loop_calls(
    inner: list[CallSite], training: list[CallSite], line: int | None
) -> None:
    found = calling_site(inner, training)
    assert (found.line if found is not None else None) == line


EPOCHS = """
def train(model):
    for epoch in range(8):
        for batch in batches:
            update(model, batch)
            if epoch:
                score(model)
        score(model)
    score(model)
"""


@pytest.mark.parametrize(("line", "after"), [(7, False), (8, True), (9, False)])
def test_what_stands_after_a_turn_of_the_training_loop(
    line: int, after: bool, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(EPOCHS)
    training = [CallSite("step.py", 3, "update"), CallSite(str(path), 5, "train")]
    assert after_epoch(CallSite(str(path), line, "train"), training) is after
    assert not after_epoch(CallSite("other.py", line, "train"), training)
