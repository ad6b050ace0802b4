"""A profiled run: what is seen, with which line, and that the program never notices."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent import profiled
from agent.profiled import Profiled
from flatout_agent import wire

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parents[3] / "jobs"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

FAULTS = """
import gc, io, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        return torch.randn(64), index % 2

def evaluate(model):
    model.eval()
    model(torch.randn(8, 64))  # EVALUATION
    model.train()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters())
kept, step = [], 0
for x, y in DataLoader(Data(), 32):  # LOADER
    weight = torch.tensor([1.0] * 32)  # TENSOR
    output = model(x)  # MODEL
    model(x)
    nn.TransformerEncoderLayer(64, 2)  # MODULE
    loss = (nn.functional.cross_entropy(output, y, reduction="none") * weight).mean()
    optimizer.zero_grad()
    loss.backward()  # BACKWARD
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # CLIP
    optimizer.step()  # OPTIMIZER
    kept.append(loss)  # KEPT
    torch.save(model.state_dict(), io.BytesIO())  # SAVE
    step += 1
    if step % 4 == 0:
        evaluate(model)
        gc.collect()  # COLLECT
    if loss.item() != loss.item() or step == 160:  # ITEM
        break
    print(f"{loss:.4f}")  # PRINT
"""

CLEAN = """
import builtins, gc, os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def patched():
    loader = torch.utils.data.dataloader
    hooks = sys.modules["torch.optim.optimizer"]
    return [
        *(name for name in ("item", "cpu", "tolist", "__bool__") if name in vars(torch.Tensor)),
        *(f.__module__ for f in (
            torch.save, torch.autograd.backward, torch.nn.Module.__init__, torch.nn.Module.__call__,
            torch.optim.Optimizer.__init__, loader.DataLoader.__iter__, torch.amp.GradScaler.scale,
            loader._BaseDataLoaderIter.__next__, torch.nn.utils.clip_grad_norm_,
            torch.autograd.profiler._enable_profiler, torch.Tensor.__format__)),
        type(print).__name__, type(open).__name__, type(torch.tensor).__name__,
        len(hooks._global_optimizer_pre_hooks), len(hooks._global_optimizer_post_hooks),
        len(gc.callbacks), sys.getprofile(), "_compiled_call_impl" in vars(model),
        torch.autograd.profiler._is_profiler_enabled,
    ]

torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 16), torch.randint(0, 2, (512,)))
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
step = 0
while step < 240:
    for x, y in DataLoader(data, 16, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 30 == 0:
            print(step, repr(loss.item()))
print(patched())
"""


def profile(
    text: str, folder: Path, orders: wire.ProfileOrders | None = None, light: bool = True
) -> Profiled:
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "train.py").write_text(text)
    return profiled.run(["train.py"], folder / "work", orders, light=light)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    return profile(FAULTS, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    return profile(CLEAN, tmp_path_factory.mktemp("clean"), light=False)


PERCEIVED = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(9, 16), nn.Linear(16, 16)
    def forward(self, ids):
        return self.out(self.words(ids).mean(1))

torch.manual_seed(0)
model = Words()
perceives = nn.Sequential(nn.Linear(16, 16), nn.Dropout()).requires_grad_(False).eval()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(160):
    x, ids = torch.randn(8, 16), torch.randint(1, 9, (8, 64))
    ids[:, 16:] = 0
    loss = (perceives(model(ids)) - perceives(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_frozen_network_is_no_evaluation_and_padding_is_measured(tmp_path: Path) -> None:
    run = profile(PERCEIVED, tmp_path)
    assert run.seen.eval_where is None
    assert all(step.eval_s == 0 for step in run.of(wire.StepTaken))
    (job,) = run.of(wire.JobSeen)
    assert job.facts.models[0].padded == 0.75


def test_a_sound_program_goes_on_as_without_flatout_and_has_its_figures(
    clean: Profiled, tmp_path: Path
) -> None:
    # the program goes on as without flatout
    (tmp_path / "train.py").write_text(CLEAN)
    without = profiled.bare(["train.py"], tmp_path, light=True)
    assert without.returncode == 0, without.stderr
    assert (clean.returncode, clean.stdout, clean.stderr) == (0, without.stdout, without.stderr)
    assert clean.of(wire.Fault) == []
    (ended,) = clean.of(wire.Ended)
    assert ended.reason == "window"
    assert ended.steps < 240, "the program ended inside the window: nothing was shown"
    # a sound loop has nothing to tell
    seen = clean.seen
    assert {call.name for call in seen.calls} <= {"print", "Tensor.item"}
    assert not any(call.calls > 0.2 for call in seen.calls)
    assert not (seen.losses_kept or seen.anomaly or seen.profiler or seen.deterministic)
    assert seen.recompiles == seen.graph_breaks == seen.debug_variables == ()
    assert seen.epochs >= 1
    assert seen.worker_cpu_s is None
    assert seen.input_shapes == 1
    # figures of a step
    seen = clean.seen
    assert 0 < seen.wait_s < seen.step_s
    assert seen.samples == 16
    assert seen.loader_start_s is not None and seen.loader_start_s > 0
    assert seen.main_cpu_s is not None and seen.main_cpu_s > 0
    # Two layers: forward, and backward to weights and, for the second, to its input.
    assert seen.flops == 2 * 16 * (16 * 32 * 2 + 32 * 2 * 3)
    assert len(seen.memory_bytes) >= 8
    assert seen.memory_peak_bytes and seen.memory_peak_bytes > 50 << 20
    weights = 4 * (16 * 32 + 32 + 32 * 2 + 2)
    assert (seen.parameter_bytes, seen.optimizer_bytes) == (weights, weights)  # momentum
    # both traces hold their steps
    seen = clean.seen
    assert len(profiled.marks(seen.trace)) == seen.steps == 6
    assert len(profiled.marks(seen.detail_trace)) == 2
    times, detail = profiled.events(seen.trace), profiled.events(seen.detail_trace)
    assert sum(item.get("name") == "aten::addmm" for item in times) == 6 * 2
    assert not any(item.get("cat") == "python_function" for item in times)
    assert any(item.get("cat") == "python_function" for item in detail)
    assert any("Input Dims" in item.get("args", {}) for item in detail)


CALLS = [
    ("torch.save", "SAVE", 1, ""),
    ("torch.tensor", "TENSOR", 1, "cpu"),
    ("Tensor.item", "ITEM", 2, "cpu"),
    ("Tensor.__format__", "PRINT", 1, "cpu"),
    ("print", "PRINT", 1, ""),
    ("clip_grad_norm_", "CLIP", 1, "error_if_nonfinite"),
    ("Module()", "MODULE", 1, "TransformerEncoderLayer"),
    ("gc.collect", "COLLECT", 0.25, ""),
]
"""Of a loop: name, line, how often a step, detail."""


def test_places_and_calls_of_a_loop_with_faults(faults: Profiled) -> None:
    # places are the users own lines
    seen = faults.seen
    assert seen.model_where == faults.line("MODEL")
    assert seen.loader_where == faults.line("LOADER")
    assert seen.backward_where == faults.line("BACKWARD")
    assert seen.optimizer_where == faults.line("OPTIMIZER")
    assert seen.eval_where == faults.line("EVALUATION")
    # calls of a loop
    for name, mark, calls, detail in CALLS:
        call = faults.calls(name)[faults.line(mark)]
        assert call.calls == pytest.approx(calls, abs=0.15 if calls < 1 else 0), name
        assert call.detail == detail
        assert call.s > 0
    # what torch calls itself is not the users
    assert list(faults.calls("Tensor.item")) == [faults.line("ITEM")]
    assert faults.calls("Tensor.__bool__") == {}
    # graphs that outlive their step
    seen = faults.seen
    assert seen.losses_kept
    (job,) = faults.of(wire.JobSeen)
    assert job.facts.eval_with_grad


@pytest.mark.thorough
def test_a_program_that_ends_in_the_window_leaves_what_there_is(tmp_path: Path) -> None:
    text = CLEAN.replace("step += 1", "step += 1; assert step < 200")
    run = profile(text, tmp_path, wire.ProfileOrders(steps=4000))
    assert run.returncode == 1
    assert "AssertionError" in run.stderr
    assert "flatout" not in run.stderr
    assert 5 < run.seen.steps == len(profiled.marks(run.seen.trace))
    assert run.seen.detail_trace == ""
    (ended,) = run.of(wire.Ended)
    assert (ended.reason, ended.steps) == ("program", 200)


OWN_PROFILER = """
import torch
from torch.profiler import ProfilerActivity, profile
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def steps(count):
    for _ in range(count):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

steps(28)
for between in (1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 40):
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as own:
        steps(2)
    print(sum(item.count for item in own.key_averages() if item.key == "aten::addmm"))
    steps(between)
"""


@pytest.mark.thorough
def test_the_scripts_own_profiler_comes_first(tmp_path: Path) -> None:
    """It starts over and over, also while ours records: it sees its own steps, ours gives way."""
    run = profile(OWN_PROFILER, tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["2"] * 11
    assert run.of(wire.Fault) == []
    assert run.seen.profiler == (run.seen.trace == "")


@pytest.mark.thorough
def test_torch_compile_tells_why_it_recompiles(tmp_path: Path) -> None:
    text = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
compiled = torch.compile(model, backend="aot_eager", dynamic=False)
for step in range(170):
    compiled(torch.ones(2 + step % 3, 8)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""
    run = profile(text, tmp_path)
    assert run.stdout == "3\n", "watching made it compile anew"
    assert len(run.seen.recompiles) == 2
    assert "size mismatch" in run.seen.recompiles[0]
    assert run.seen.flops is None
    assert run.of(wire.Fault) == []


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="torchrun needs libuv, which Windows lacks")
def test_each_rank_records_the_same_steps(tmp_path: Path) -> None:
    argv = [*TORCHRUN, str(JOBS / "ddp.py"), "--steps", "160"]
    run = profiled.run(argv, tmp_path / "here")
    assert run.returncode == 0, run.stderr
    one, other = run.of(wire.LoopSeen)
    assert one.steps == other.steps == 6
    assert one.trace != other.trace
    steps = [ended.steps for ended in run.of(wire.Ended) if ended.steps]  # torchrun's own has none
    assert len(steps) == 2
    assert len(set(steps)) == 1
