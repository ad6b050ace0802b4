"""The whole step as one recording: with a stand-in for CUDA graphs, and for real on a GPU."""

from __future__ import annotations

import copy
import gc
import random
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from flatout.running.one.ring import Ring, rings
from flatout_agent.job import Job
from flatout_agent.tell import stack_dump
from flatout_agent.tell.pulse import Pulse
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import beat
from flatout_agent.watch.beat import Beat
from flatout_agent.watch.loop_record import Step
from flatout_train import plans
from flatout_train.step.graph.cuda import CudaRecorder
from flatout_train.step.graph.rates import Rates
from flatout_train.step.graph.whole_step import RECORDINGS, WholeStep
from flatout_train.step.optimizing import fuse
from train.step.graph.fake import FakeRecorder
from train.step.loops import same

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
WARM = 3
"""Steps of a shape before its recording."""


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.dropout(self.norm(self.inner(x)).relu()))


@dataclass
class Run:
    """A model that trains, and the step that may record it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    body: Callable[[Any], dict[str, Tensor]]
    scheduler: Any = None

    def __post_init__(self) -> None:
        self.fake = FakeRecorder(self.tensors)
        self.whole = WholeStep(
            self.body, self.model, self.optimizer, CPU, self.scheduler, recorder=self.fake
        )

    def tensors(self) -> Iterator[Tensor]:
        yield from self.model.state_dict(keep_vars=True).values()
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def __call__(self, batch: Any) -> float:
        outputs = self.whole.run(batch)
        if outputs is None:
            outputs = self.body(batch)
        loss = float(outputs["loss"])
        if self.scheduler is not None:
            self.scheduler.step()
        return loss

    def eagerly(self, batch: Any) -> float:
        loss = float(self.body(batch)["loss"])
        if self.scheduler is not None:
            self.scheduler.step()
        return loss


def a_run(
    optimizer: str = "adamw",
    *,
    of: Callable[[], nn.Module] = Model,
    schedule: Any = None,
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    **options: Any,
) -> Run:
    torch.manual_seed(0)
    model = of()
    made = OPTIMIZERS[optimizer](model.parameters(), **options)

    def body(batch: Any) -> dict[str, Tensor]:
        made.zero_grad(set_to_none=True)
        value = (loss or squared)(model, batch)
        value.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        made.step()
        return {"loss": value.detach(), "grad_norm": norm}

    return Run(model, made, body, schedule(made) if schedule else None)


# rates that float32 holds exactly: a tensor's rate is then the float's to the last bit
OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda ps, **o: torch.optim.AdamW(ps, **{"lr": 2**-5, "fused": True, **o}),
    "adam": lambda ps, **o: torch.optim.Adam(ps, **{"lr": 2**-5, "fused": True, **o}),
    "adam-foreach": lambda ps, **o: torch.optim.Adam(ps, **{"lr": 2**-5, **o}),
    "sgd": lambda ps, **o: torch.optim.SGD(
        ps, **{"lr": 2**-4, "momentum": 0.9, "fused": True, **o}
    ),
    "sgd-plain": lambda ps, **o: torch.optim.SGD(ps, **{"lr": 2**-4, "momentum": 0.9, **o}),
}


def squared(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch["x"]).squeeze(1) - batch["y"]).square().mean()


def batches(count: int, size: int = 6) -> list[dict[str, Tensor]]:
    made = torch.Generator().manual_seed(7)
    return [
        {"x": torch.randn(size, 4, generator=made), "y": torch.randn(size, generator=made)}
        for _ in range(count)
    ]


def halving(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "sgd-plain"])
def test_each_call_is_one_step_the_same_as_eager_to_the_last_bit(optimizer: str) -> None:
    plain, recorded = a_run(optimizer), a_run(optimizer)
    data = batches(20)
    expected = [plain.eagerly(batch) for batch in data]
    assert [recorded(batch) for batch in data] == expected
    assert recorded.whole.reason == "recorded"
    assert (recorded.fake.rehearsals, recorded.fake.recordings) == (1, 1)
    assert recorded.fake.replays == len(data) - WARM
    for name, value in plain.model.state_dict().items():
        assert torch.equal(recorded.model.state_dict()[name], value), name


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_schedulers_and_users_change_the_rate_between_replays(optimizer: str) -> None:
    plain, recorded = a_run(optimizer, schedule=halving), a_run(optimizer, schedule=halving)
    for place, batch in enumerate(batches(16)):
        for run in (plain, recorded):
            if place == 12:
                run.optimizer.param_groups[0]["lr"] *= 4
        assert recorded(batch) == plain.eagerly(batch), place
        assert type(recorded.optimizer.param_groups[0]["lr"]) is float
    assert recorded.fake.recordings == 1


def test_dropout_draws_fresh_numbers_in_each_replay_the_ones_eager_would_draw() -> None:
    plain, recorded = a_run(of=lambda: Model(0.5)), a_run(of=lambda: Model(0.5))
    data = batches(1) * 12
    torch.manual_seed(3)
    expected = [plain.eagerly(batch) for batch in data]
    torch.manual_seed(3)
    assert [recorded(batch) for batch in data] == expected


def test_each_shape_has_its_recording_and_what_is_too_many_runs_eagerly() -> None:
    plain, recorded = a_run(), a_run()
    data = [batches(1, size)[0] for _ in range(8) for size in range(3, 4 + RECORDINGS)]
    for batch in data:
        assert recorded(batch) == plain.eagerly(batch)
    assert recorded.fake.recordings == RECORDINGS
    assert recorded.fake.replays == RECORDINGS * (8 - WARM)
    assert "is none of them" in recorded.whole.reason


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("clears", [False, True])
def test_gradients_belong_to_the_last_step_whichever_recording_ran(
    optimizer: str, clears: bool
) -> None:
    """Also in programs that clear them between steps."""
    plain, recorded = a_run(optimizer), a_run(optimizer)
    for batch in [batches(1, size)[0] for _ in range(6) for size in (3, 5)] + batches(1, 7):
        for run in (plain, recorded):
            if clears:
                run.optimizer.zero_grad()
        assert recorded(batch) == plain.eagerly(batch)
        for one, other in zip(recorded.model.parameters(), plain.model.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)
    assert recorded.fake.replays == 2 * (6 - WARM)


class Scaled(Model):
    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor


def test_what_is_outdated_is_dropped_with_all_that_was_recorded_on_its_stream() -> None:
    """A graph that is freed takes what the others of its stream still use."""
    plain, recorded = a_run(of=Scaled), a_run(of=Scaled)
    for factor in (1.0, 2.0):
        for place in range(60):
            batch = batches(1, 3 + place % 3)[0]
            for run in (plain, recorded):
                run.model.factor = factor
            assert recorded(batch) == plain.eagerly(batch), (factor, place)
    assert recorded.fake.recordings == 3 + 1 + 3  # what made no room before it was recorded again
    assert recorded.whole.reason == "recorded"


def test_a_recording_that_is_not_used_lives_as_long_as_the_others() -> None:
    """A loader's thread draws a number while the second shape is recorded."""
    draws: list[bool] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if draws:
            draws.pop()
            random.random()
        return squared(model, batch)

    plain, recorded = a_run(), a_run(loss=loss)
    for place in range(24):
        batch = batches(1, 3 + place % 2)[0]
        if place == 2 * WARM + 1:
            draws.append(True)
        assert recorded(batch) == plain.eagerly(batch)
    assert recorded.fake.recordings == 3
    gone = weakref.ref(recorded.whole._unused[0])
    recorded.whole.close()
    assert gone() is None


def test_nests_of_any_kind_and_plain_values_are_batches() -> None:
    @dataclass
    class Pair:
        x: Tensor
        y: Tensor
        scale: float

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return squared(model, vars(batch[0])) * batch[0].scale

    plain, recorded = a_run(loss=loss), a_run(loss=loss)
    for place, batch in enumerate(batches(20)):
        nest = (Pair(**batch, scale=1.0 + place % 2), "train", None)
        assert recorded(nest) == plain.eagerly(nest)
    assert recorded.fake.recordings == 2  # one for each scale


def test_batches_that_never_repeat_end_the_search() -> None:
    recorded = a_run()
    for number, batch in enumerate(batches(70)):
        recorded({**batch, "number": number})
    assert "batches differ too often" in recorded.whole.reason
    assert recorded.fake.recordings == 0


def test_a_rate_that_cannot_be_a_tensor_is_named_when_it_keeps_changing() -> None:
    plain, recorded = a_run("sgd-plain"), a_run("sgd-plain")
    for place, batch in enumerate(batches(66)):
        for run in (plain, recorded):
            run.optimizer.param_groups[0]["lr"] = 0.1 / (1 + place)
        assert recorded(batch) == plain.eagerly(batch)
    assert recorded.whole.reason == "the optimizer's 'lr' changes from step to step"


def decays(run: Run, place: int) -> None:
    run.optimizer.param_groups[0]["weight_decay"] = 0.0 if place < 8 else 0.5


def freezes(run: Run, place: int) -> None:
    run.model.norm.train(place < 7)
    run.model.inner.requires_grad_(place < 13)


def moves(run: Run, place: int) -> None:
    if place == 6:
        run.model.outer.weight.data = run.model.outer.weight.data.clone() * 0.5


@pytest.mark.parametrize(("change", "recordings"), [(decays, 2), (freezes, 3), (moves, 2)])
def test_what_the_program_changes_is_another_recording(change: Any, recordings: int) -> None:
    """A number of the optimizer, frozen parameters, the mode of a part, the place of weights."""
    plain, recorded = a_run("sgd"), a_run("sgd")
    for place, batch in enumerate(batches(20)):
        for run in (plain, recorded):
            change(run, place)
        assert recorded(batch) == plain.eagerly(batch), place
    assert recorded.fake.recordings == recordings


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_loading_states_takes_effect_in_the_next_step(optimizer: str) -> None:
    plain, recorded = a_run(optimizer, schedule=halving), a_run(optimizer, schedule=halving)
    data = batches(20)
    saved: dict[int, Any] = {}
    for place, batch in enumerate(data):
        for run in (plain, recorded):
            if place == 5:
                parts = (run.model, run.optimizer, run.scheduler)
                saved[id(run)] = [copy.deepcopy(part.state_dict()) for part in parts]
            if place == 10:
                run.model.load_state_dict(saved[id(run)][0])
                run.optimizer.load_state_dict(saved[id(run)][1])
                run.scheduler.load_state_dict(saved[id(run)][2])
        assert recorded(batch) == plain.eagerly(batch), place
    assert recorded.fake.recordings == 2


class Moody(Model):
    """A model that keeps something on the host from step to step, as `what` says."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.calls, self.seen = what, 0, []
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner(x)
        if self.what == "counts":
            self.calls += 1
            inner = inner / self.calls
        elif self.what == "rebinds":
            self.average = 0.9 * self.average + 0.1 * inner.detach().mean(0)
            inner = inner + self.average
        elif self.what == "random":
            inner = inner * random.random()
        elif self.what == "numpy":
            inner = inner * float(np.random.rand())
        elif self.what == "keeps":
            self.seen.append(inner.detach().mean())
        elif self.what == "waits":
            inner = inner / (1 + inner.detach().abs().max().item())
        return self.outer(self.norm(inner).relu())


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("counts", "model.calls"),
        ("rebinds", "model.average"),
        ("random", "Python's random"),
        ("numpy", "numpy.random"),
        ("keeps", "model.seen"),
        ("waits", "operation not permitted when stream is capturing"),
    ],
)
def test_what_a_replay_would_not_do_is_found_and_the_step_stays_eager(
    what: str, reason: str
) -> None:
    plain, recorded = a_run(of=lambda: Moody(what)), a_run(of=lambda: Moody(what))
    data = batches(12)
    random.seed(1), np.random.seed(1)
    expected = [plain.eagerly(batch) for batch in data]
    random.seed(1), np.random.seed(1)
    assert [recorded(batch) for batch in data] == expected
    assert reason in recorded.whole.reason
    assert recorded.fake.replays == 0
    assert recorded.model.calls == plain.model.calls
    assert len(recorded.model.seen) == len(plain.model.seen)


class Counting(torch.optim.Optimizer):
    """An optimizer of one's own, which counts in Python and shrinks its rate by the count."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["count"] = state.get("count", 0) + 1
            parameter -= 0.1 / state["count"] * parameter.grad


OPTIMIZERS["counting"] = Counting


def test_an_optimizer_that_counts_in_python_is_not_recorded() -> None:
    plain, recorded = a_run("counting"), a_run("counting")
    for batch in batches(10):
        assert recorded(batch) == plain.eagerly(batch)
    assert "Counting.state.count" in recorded.whole.reason


def test_waiting_for_the_device_is_found_before_anything_is_recorded() -> None:
    recorded = a_run()
    recorded.fake.waits = "the step waits for the device at train.py:3"
    for batch in batches(6):
        recorded(batch)
    assert recorded.whole.reason == "the step waits for the device at train.py:3"
    assert (recorded.fake.rehearsals, recorded.fake.recordings) == (1, 0)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("out of memory"), RuntimeError("CUDA error: out of memory")]
)
def test_memory_that_runs_out_on_the_side_stream_leaves_the_step_to_the_caller(
    error: Exception,
) -> None:
    plain, recorded = a_run(), a_run()
    recorded.fake.error = error
    for batch in batches(6):
        assert recorded(batch) == plain.eagerly(batch)
    assert "memory ran out" in recorded.whole.reason
    assert recorded.whole.note.startswith("no: ")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("out of memory"), RuntimeError("operation not permitted")]
)
def test_a_recording_that_fails_holds_nothing_of_the_step(error: Exception) -> None:
    seen: list[weakref.ref[Tensor]] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        activation = model(batch["x"]).squeeze(1)
        if recorded.fake.recordings:
            seen.append(weakref.ref(activation))
            raise type(error)(str(error))
        return (activation - batch["y"]).square().mean()

    recorded = a_run(loss=loss)
    data = batches(1 + WARM)
    for batch in data[:WARM]:
        recorded(batch)
    gc.collect()
    gc.disable()
    try:
        assert recorded.whole.run(data[WARM]) is None
        assert [ref() for ref in seen] == [None]
    finally:
        gc.enable()
    assert recorded.whole.reason == f"it cannot be recorded: {error}"


def test_the_users_errors_pass_through() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return squared(model, batch) * (1 // batch["divisor"])

    recorded = a_run(loss=loss)
    for batch in batches(2):
        recorded({**batch, "divisor": 1})
    with pytest.raises(ZeroDivisionError):
        for batch in batches(4):
            recorded({**batch, "divisor": 0})


def test_closing_puts_the_optimizer_back() -> None:
    recorded = a_run()
    before = {k: v for k, v in recorded.optimizer.param_groups[0].items() if k != "params"}
    for batch in batches(6):
        recorded(batch)
    recorded.whole.close()
    after = {k: v for k, v in recorded.optimizer.param_groups[0].items() if k != "params"}
    assert after == before
    assert recorded.whole.reason == "closed"
    assert recorded.whole.run(batches(1)[0]) is None


def test_an_optimizer_that_counts_on_the_cpu_is_named() -> None:
    model = Model()
    optimizer = torch.optim.Adagrad(model.parameters())
    rates = Rates(optimizer, CUDA)
    assert rates.on_host() == "Adagrad keeps its 'step' on the cpu"


def nothing(*_: Any) -> None:
    pass


def moved_buffer(model: Any) -> None:
    model.norm.running_mean = model.norm.running_mean.to("meta")


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)


def refused(
    model: nn.Module | None = None,
    optimizer: Any = lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
    change: Callable[[Any], Any] = nothing,
    hook: Any = None,
    schedule: Callable[[Any], Any] = nothing,
) -> WholeStep:
    model = model or Model()
    made = optimizer(model.parameters())
    change(model)
    if hook is not None:
        made.register_step_post_hook(hook)
    recorder = FakeRecorder(list)
    return WholeStep(lambda _: {}, model, made, CPU, schedule(made), recorder=recorder)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"change": lambda m: m.inner.register_forward_hook(nothing)}, "inner has a hook"),
        ({"change": lambda m: m.inner.weight.register_hook(nothing)}, "inner.weight has a grad"),
        ({"hook": nothing}, "optimizer's step has a hook"),
        ({"model": nn.Sequential(nn.Embedding(4, 4, sparse=True))}, "sparse gradients"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS decides on the host"),
        ({"model": nn.DataParallel(Model())}, "DataParallel exchanges gradients"),
        ({"schedule": one_cycle}, "cycle_momentum=False keeps it constant"),
        ({"change": moved_buffer}, "norm.running_mean is on meta"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_recorded_is_refused_at_once(parts: dict[str, Any], reason: str) -> None:
    whole = refused(**parts)
    assert reason in whole.reason
    assert whole.run(None) is None


def hooked_everywhere(run: Run, hook: Any) -> Any:
    return register_module_forward_hook(lambda module, *_: hook() if module is run.model else None)


REGISTER: dict[str, Callable[[Run, Any], Any]] = {
    "the optimizer": lambda run, hook: run.optimizer.register_step_post_hook(hook),
    "every optimizer": lambda run, hook: register_optimizer_step_post_hook(hook),
    "a module": lambda run, hook: run.model.inner.register_forward_hook(hook),
    "every module": hooked_everywhere,
    "a gradient": lambda run, hook: run.model.inner.weight.register_hook(hook),
}


@pytest.mark.parametrize("of", REGISTER)
def test_hooks_that_come_after_a_recording_are_called_in_each_step(
    of: str, request: pytest.FixtureRequest
) -> None:
    plain, recorded = a_run("sgd"), a_run("sgd")
    begun: list[int] = []
    called: list[int] = []
    data = batches(20)
    for place, batch in enumerate(data):
        begun.append(place)
        if place == 8:
            handle = REGISTER[of](recorded, lambda *_: called.append(begun[-1]))
            request.addfinalizer(handle.remove)
        if place == 14:
            handle.remove()
        assert recorded(batch) == plain.eagerly(batch)
        if 8 <= place < 14:
            assert "hook, which a replay would not call" in recorded.whole.note
    if of != "every optimizer":  # which is called for the plain run's as well
        assert called == list(range(8, 14))
    assert set(called) == set(range(8, 14))
    assert recorded.whole.reason == "recorded"
    assert recorded.fake.recordings == 1
    assert recorded.fake.replays == len(data) - WARM - 6


def test_replays_do_not_look_through_all_modules_for_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = a_run()
    for batch in batches(6):
        recorded(batch)
    monkeypatch.setattr(recorded.whole._hooks, "_places", lambda: pytest.fail("it was looked"))
    for batch in batches(6):
        recorded(batch)
    assert recorded.fake.replays == 12 - WARM


def test_hooks_of_torch_itself_only_compute_and_are_recorded() -> None:
    plain, recorded = (a_run("sgd", of=with_hooks_of_torch) for _ in range(2))
    assert "hook" not in recorded.whole.reason
    for batch in batches(8):
        assert recorded(batch) == plain.eagerly(batch)


@pytest.mark.parametrize("optimizer", ["adam-foreach", "sgd-plain"])
def test_an_optimizer_that_flatout_made_fused_is_recorded(optimizer: str) -> None:
    """The switch has a hook of its own on the optimizer."""
    plain, recorded = a_run(optimizer), a_run(optimizer)
    for run in (plain, recorded):
        reason, _ = fuse(run.optimizer)
        assert reason.startswith("fused")
        run.__post_init__()
    for batch in batches(12):
        assert plain.eagerly(batch) == recorded(batch)
    assert recorded.whole.reason == "recorded"
    assert recorded.fake.replays == 12 - WARM


def test_what_flatout_watches_counts_each_replay_as_one_step() -> None:
    """gc-pause in a plan, and `flatout run` around a program that uses the library."""
    run = a_run("sgd")
    job = Job()
    counted: list[int] = []
    job.step_callbacks.append(lambda: counted.append(run.fake.replays))
    handle = register_optimizer_step_post_hook(plans._after_step(job))
    try:
        run.__post_init__()
        for batch in batches(10):
            run(batch)
    finally:
        handle.remove()
    assert run.whole.reason == "recorded"
    assert counted == [0] * WARM + list(range(1, 10 - WARM + 1)), "after it, once each"
    for batch in batches(2):
        run(batch)
    assert len(counted) == 10, "the hook is gone"


def test_the_pulse_has_the_loss_of_each_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, job, recorder = a_run("sgd"), Job(), Recorder(str(tmp_path))
    monkeypatch.setattr(stack_dump, "install", lambda path: 0)
    told = Beat(Pulse(str(tmp_path)), job, recorder)
    monkeypatch.setattr(beat, "of_process", told)
    job.after_step(lambda: told.step(Step(), time.perf_counter(), None))
    handle = register_optimizer_step_post_hook(plans._after_step(job))
    try:
        run.__post_init__()
        losses = [run(batch) for batch in batches(10)]
    finally:
        handle.remove()
        told._undo()
        recorder._file.close()
    (path,) = rings(tmp_path)
    steps = Ring(path).new()
    assert len(steps) == len(losses)
    assert [step.loss for step in steps[WARM:]] == losses[WARM:]


def test_the_optimizers_own_flags_rates_and_counters_are_in_a_checkpoint_and_come_back() -> None:
    """A saved capturable=True does not load where the parameters are on the CPU."""
    run = a_run("adam-foreach")
    run.eagerly(batches(1)[0])
    expected = run.optimizer.state_dict()["param_groups"]
    rates = Rates(run.optimizer, CPU)
    rates.prepare()
    assert run.optimizer.param_groups[0]["capturable"] is True
    found = run.optimizer.state_dict()
    assert found["param_groups"] == expected
    run.optimizer.load_state_dict(found)
    rates.prepare()
    assert run.optimizer.param_groups[0]["capturable"] is True
    assert run.optimizer.state_dict()["param_groups"] == expected
    before = copy.deepcopy(run.optimizer.state_dict()["state"])
    with rates.as_tensors():
        assert isinstance(run.optimizer.param_groups[0]["lr"], Tensor)
        run.optimizer.param_groups[0]["eps"] = 0.5  # the user's own changes stay
    rates.undo()
    group = run.optimizer.param_groups[0]
    assert (group["capturable"], group["lr"], group["eps"]) == (False, 2**-5, 0.5)
    assert same(run.optimizer.state_dict()["state"], before)


def with_hooks_of_torch() -> nn.Module:
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 8)), nn.Linear(8, 1))


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({"x": torch.zeros(2, device="meta")}, "tensor on meta"),
        ({"x": torch.zeros(2, requires_grad=True)}, "requires a gradient"),
        ({"x": torch.eye(2).to_sparse()}, "layout torch.sparse_coo"),
        ({"x": object()}, "holds a object"),
    ],
)
def test_batches_that_no_buffer_can_hold_are_left_to_the_caller(batch: Any, reason: str) -> None:
    recorded = a_run()
    assert recorded.whole.run(batch) is None
    assert reason in recorded.whole.reason


def test_on_the_cpu_nothing_is_recorded() -> None:
    model = Model()
    whole = WholeStep(lambda _: {}, model, torch.optim.SGD(model.parameters()), CPU)
    assert whole.run(batches(1)[0]) is None
    assert whole.reason == "the model is on cpu: graphs are recorded on CUDA devices"
    assert CudaRecorder(CUDA).refusal() is None


@dataclass
class OnGpu:
    """The same training twice: eagerly, and with what can be recorded."""

    kind: str = "adamw"
    forward: Callable[[nn.Module, Any], Tensor] = squared

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        model = Model(0.25)
        self.models = [copy.deepcopy(model).to(CUDA) for _ in range(2)]
        self.optimizers = [OPTIMIZERS[self.kind](model.parameters()) for model in self.models]
        self.schedulers = [halving(optimizer) for optimizer in self.optimizers]
        self.bodies = [self.body(number) for number in range(2)]
        self.whole = WholeStep(self.bodies[1], self.models[1], self.optimizers[1], CUDA)

    def body(self, number: int) -> Callable[[Any], dict[str, Tensor]]:
        def run(batch: Any) -> dict[str, Tensor]:
            model, optimizer = self.models[number], self.optimizers[number]
            optimizer.zero_grad(set_to_none=True)
            loss = self.forward(model, batch)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return {"loss": loss.detach(), "grad_norm": norm}

        return run

    def train(self, data: list[Any], recorded: bool) -> list[float]:
        torch.manual_seed(5)
        losses = []
        for batch in data:
            outputs = self.whole.run(batch) if recorded else None
            if outputs is None:
                outputs = self.bodies[recorded](batch)
            losses.append(outputs["loss"].clone())
            self.schedulers[recorded].step()
        return [float(loss) for loss in losses]


def on_gpu(data: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    return [{name: value.to(CUDA) for name, value in batch.items()} for batch in data]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
def test_on_a_gpu_the_losses_are_the_same_as_eager_to_the_last_bit(kind: str) -> None:
    pair, data = OnGpu(kind), on_gpu(batches(20, 16))
    expected = pair.train(data, recorded=False)
    assert pair.train(data, recorded=True) == expected
    assert pair.whole.reason == "recorded"
    for one, other in zip(*(model.parameters() for model in pair.models), strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
def test_on_a_gpu_an_unfused_optimizer_is_recorded_and_put_back() -> None:
    pair, data = OnGpu("adam-foreach"), on_gpu(batches(20, 16))
    expected = pair.train(data, recorded=False)
    # counting on the device rounds its corrections in float32
    assert pair.train(data, recorded=True) == pytest.approx(expected, rel=1e-3)
    assert pair.whole.reason == "recorded"
    pair.whole.close()
    group = pair.optimizers[1].param_groups[0]
    assert group["capturable"] is False
    assert pair.optimizers[1].state[group["params"][0]]["step"].device == CPU
    assert float(pair.optimizers[1].state[group["params"][0]]["step"]) == 20


def waiting(model: nn.Module, batch: Any) -> Tensor:
    loss = squared(model, batch)
    return loss / max(1.0, loss.item())


@pytest.mark.gpu
def test_on_a_gpu_a_step_that_waits_is_found_with_its_line_and_stays_eager() -> None:
    pair, data = OnGpu(forward=waiting), on_gpu(batches(10, 16))
    expected = pair.train(data, recorded=False)
    assert pair.train(data, recorded=True) == expected
    line = waiting.__code__.co_firstlineno + 2
    assert pair.whole.reason.endswith(f"{Path(__file__).name}:{line}")


@pytest.mark.gpu
def test_on_a_gpu_a_failed_recording_leaves_nothing_behind() -> None:
    pair, data = OnGpu(forward=waiting), on_gpu(batches(10, 16))
    expected = pair.train(data, recorded=False)
    recorder: Any = pair.whole._recorder
    rehearse = recorder.rehearse
    recorder.rehearse = lambda run: (rehearse(run)[0], None)  # as if nothing had been seen
    assert pair.train(data, recorded=True) == expected  # dropout draws as before
    assert "it cannot be recorded" in pair.whole.reason
    torch.cuda.empty_cache()
    again = OnGpu()
    assert again.train(data, recorded=True) == again.train(data, recorded=False)
    assert again.whole.reason == "recorded"
