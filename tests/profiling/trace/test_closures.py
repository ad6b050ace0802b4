"""optimizer.step(closure): forward and backward inside of it are no update."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from flatout.nouns.anatomy import Anatomy, Kind
from flatout.profiling.trace.analysing import analyse
from flatout.profiling.trace.anatomy import anatomy
from flatout.profiling.trace.attribution import look
from flatout.profiling.trace.reading import read
from profiling.trace.making import MAIN, Trace

ENGINE = "autograd::engine::evaluate_function: AddmmBackward0"


def parts(trace: Trace, folder: Path) -> Anatomy:
    return anatomy(look(trace.recording(folder)))


def closure(trace: Trace, at: float) -> Trace:
    """200 us: zero_grad, 50 of forward, 80 of backward, and Python between them."""
    trace.mark("Optimizer.zero_grad#AdamW.zero_grad", at, at + 10)
    trace.op("aten::addmm", at + 30, at + 80, **{"Sequence number": 7})
    trace.op("aten::ones_like", at + 90, at + 100)
    trace.op(ENGINE, at + 120, at + 200, **{"Sequence number": 7, "Fwd thread id": 1})
    return trace.op("aten::mm", at + 120, at + 200)


def test_only_what_follows_the_closure_is_the_optimizers(tmp_path: Path) -> None:
    trace = Trace().steps(0, 1000).mark("Optimizer.step#AdamW.step", 100, 500)
    closure(trace, 150).op("aten::_foreach_add_", 380, 480)
    found = parts(trace, tmp_path)
    # From 350 on: the update, and the optimizer's own Python around it.
    assert found.part(Kind.OPTIMIZER) == pytest.approx(0.150 + 0.010)  # zero_grad's own 10 us
    assert found.part(Kind.MATMUL) == pytest.approx(0.130)
    assert found.part(Kind.ELEMENTWISE) == pytest.approx(0.010)
    assert found.part(Kind.PYTHON) == pytest.approx(1.000 - 0.160 - 0.130 - 0.010)


def test_each_closure_of_a_step_is_its_own(tmp_path: Path) -> None:
    trace = Trace().steps(0, 1000).mark("Optimizer.step#LBFGS.step", 0, 1000)
    closure(trace, 0).op("aten::add_", 250, 350)
    closure(trace, 400).op("aten::dot", 650, 750)
    found = parts(trace, tmp_path)
    # 200 to 380 and 600 to 1000, less the Python before the second closure.
    assert found.part(Kind.OPTIMIZER) == pytest.approx(0.150 + 0.400 + 2 * 0.010)
    assert found.part(Kind.MATMUL) == pytest.approx(0.260)


def test_numbered_operators_without_a_backward_pass_are_an_update(tmp_path: Path) -> None:
    """An optimizer of the user's own that does not switch gradients off."""
    trace = Trace().steps(0, 1000).op("aten::mm", 0, 200, **{"Sequence number": 1})
    trace.op(ENGINE, 200, 400, **{"Sequence number": 1})
    trace.mark("Optimizer.step#Own.step", 500, 900)
    trace.op("aten::add_", 500, 900, **{"Sequence number": 2})
    assert parts(trace, tmp_path).part(Kind.OPTIMIZER) == pytest.approx(0.400)


def test_a_device_attributes_the_closures_kernels_to_themselves(tmp_path: Path) -> None:
    trace = Trace().steps(0, 1000).mark("Optimizer.step#AdamW.step", 0, 1000)
    trace.op("aten::addmm", 10, 50, **{"Sequence number": 7})
    trace.kernel("ampere_sgemm_128x64", 100, 400, launch=20)
    trace.op(ENGINE, 60, 90, tid=MAIN + 1, **{"Sequence number": 7})
    trace.op("aten::_fused_adamw_", 500, 600)
    trace.kernel("multi_tensor_apply_kernel", 600, 700, launch=520)
    found = parts(trace, tmp_path)
    assert found.part(Kind.MATMUL) == pytest.approx(0.300)
    assert found.part(Kind.OPTIMIZER) == pytest.approx(0.100)


def hooked_step(trace: Trace, at: float, *, stacks: bool) -> Trace:
    """As `closure`, then 100 us of a hook's operators, then 40 us of the update."""
    trace.mark("Optimizer.step#AdamW.step", at, at + 400)
    if stacks:
        trace.add("python_function", "torch/optim/adamw.py(9): step", at + 5, at + 390)
        trace.add("python_function", "lightning/precision.py(3): _wrap_closure", at + 8, at + 320)
        trace.add("python_function", "train.py(41): on_before_optimizer_step", at + 205, at + 315)
        trace.add("python_function", "torch/optim/adamw.py(300): adamw", at + 330, at + 380)
    closure(trace, at + 10)
    trace.op("aten::linalg_vector_norm", at + 215, at + 255)
    trace.op("aten::mean", at + 265, at + 310)
    return trace.op("aten::add_", at + 335, at + 375)


def test_what_a_closure_calls_after_its_backward_pass_is_no_update(tmp_path: Path) -> None:
    trace = hooked_step(Trace().steps(0, 1000), 100, stacks=True)
    anatomy_seen = parts(trace, tmp_path)
    # From the last operator of the hook on, with the step's own Python before its closure.
    assert anatomy_seen.part(Kind.REDUCTION) == pytest.approx(0.085)
    assert anatomy_seen.part(Kind.OPTIMIZER) == pytest.approx(0.090 + 0.010)


def test_stacks_of_another_recording_tell_it(tmp_path: Path) -> None:
    times = hooked_step(Trace().steps(0, 1000), 100, stacks=False)
    detail = hooked_step(Trace().steps(0, 1000), 100, stacks=True)
    attribution = look(
        times.recording(tmp_path, "times.json"), detail.recording(tmp_path, "detail.json")
    )
    anatomy_seen = anatomy(attribution)
    assert anatomy_seen.part(Kind.REDUCTION) == pytest.approx(0.085)
    assert anatomy_seen.part(Kind.OPTIMIZER) == pytest.approx(0.090 + 0.010)


OPTIMIZERS = {
    "lbfgs": lambda weights: torch.optim.LBFGS(weights, lr=0.1, max_iter=3),
    "adamw": torch.optim.AdamW,
}


def recorded(name: str, closed: bool, folder: Path) -> Anatomy:
    """Three steps of a small network on a CPU, with the gradients in a closure or before it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 9))
    optimizer = OPTIMIZERS[name](model.parameters())
    inputs, labels = torch.randn(512, 256), torch.randint(0, 9, (512,))

    def gradients() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    path = folder / f"{name}-{closed}.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda window: window.export_chrome_trace(str(path)),
    ) as window:
        for _ in range(6):
            if closed:
                optimizer.step(gradients)
            else:
                gradients()
                optimizer.step()
            window.step()
    return analyse(read([path])[0]).anatomy


@pytest.mark.slow
def test_a_recorded_closure_has_the_operators_of_the_same_loop_without_one(tmp_path: Path) -> None:
    closed, plain = recorded("adamw", True, tmp_path), recorded("adamw", False, tmp_path)
    for kind in (Kind.MATMUL, Kind.ELEMENTWISE, Kind.REDUCTION):
        assert launches(closed, kind) == launches(plain, kind) > 0
    # step(closure) computes under no_grad: a few operators of its own at most.
    assert launches(closed, Kind.OPTIMIZER) == pytest.approx(launches(plain, Kind.OPTIMIZER), abs=3)


def test_lbfgs_computes_products_in_every_closure(tmp_path: Path) -> None:
    found = recorded("lbfgs", True, tmp_path)
    # Three evaluations a step: two products forward, three backward (no gradient of the input).
    assert launches(found, Kind.MATMUL) >= 3 * 5
    assert launches(found, Kind.OPTIMIZER) > 0


@pytest.mark.thorough
@pytest.mark.slow
def test_lightnings_closure(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(512, 512)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.linear(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    path = tmp_path / "lightning.json"
    loader = torch.utils.data.DataLoader(torch.randn(64, 512), batch_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        with profile(activities=[ProfilerActivity.CPU]) as window:
            trainer.fit(Net(), loader)
    window.export_chrome_trace(str(path))
    found = analyse(read([path])[0]).anatomy
    # Four batches, each one product forward and one backward (of the weights).
    assert launches(found, Kind.MATMUL) == 4 * 2
    assert launches(found, Kind.OPTIMIZER) > 0


def launches(found: Anatomy, kind: Kind) -> float:
    return sum(part.launches for part in found.parts if part.kind is kind)
