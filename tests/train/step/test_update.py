"""NaN and Inf, clipping and the loss scale; on the CPU, and as on an accelerator."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import flatout
from flatout_train.errors import NonfiniteError
from flatout_train.step import histories, update
from flatout_train.step import train_step as step
from flatout_train.step.graph.whole_step import WholeStep
from train.step.graph.fake import FakeRecorder
from train.step.loops import PLAIN, by_hand

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=3e-4, fused=True),
    "adagrad-fused": lambda p: torch.optim.Adagrad(p, lr=1e-2, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


class Late(histories.WaitingCopies):
    """Values that arrive three looks after they were sent."""

    def start(self, values: Tensor) -> Callable[[bool], list[float] | None]:
        looks = [0]

        def read(wait: bool) -> list[float] | None:
            looks[0] += 1
            return values.tolist() if wait or looks[0] > 3 else None

        return read


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps as they are where the host may not read values, with tensors on the CPU."""
    monkeypatch.setattr(step, "HostUpdate", update.DeviceUpdate)
    monkeypatch.setattr(histories, "WaitingCopies", Late)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def batches(count: int = 8, bad: tuple[int, ...] = ()) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(2)
    data = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(count)]
    for place in bad:
        data[place][0][3, 2] = math.nan
    return data


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    state = optimizer.state_dict()["state"]
    tensors = [value for each in state.values() for value in each.values() if value is not None]
    return copy.deepcopy([*model.state_dict().values(), *map(torch.as_tensor, tensors)])


def made(kind: str, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    return (
        model,
        optimizer,
        flatout.train_step(model, F.cross_entropy, optimizer, **PLAIN, **options),
    )


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_stop_names_step_and_parameters_and_leaves_everything(
    kind: str, clip: float | None
) -> None:
    model, optimizer, step = made(kind, clip_norm=clip)
    data = batches(bad=(3,))
    for batch in data[:3]:
        step(batch)
    before = snapshot(model, optimizer)
    with pytest.raises(NonfiniteError, match=r"step 4: the loss is nan.* in 0\.weight, 0\.bias"):
        step(data[3])
    assert all(map(torch.equal, before, snapshot(model, optimizer)))
    assert step.metrics().skipped == 1


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("bad", [(0,), (2, 5), (0, 1, 7)])
@pytest.mark.parametrize("where", ["host", "device"])
def test_skip_is_a_run_without_the_bad_batches(
    kind: str, bad: tuple[int, ...], where: str, request: pytest.FixtureRequest
) -> None:
    if where == "device":
        request.getfixturevalue("accelerator")
    model, optimizer, step = made(kind, nonfinite="skip")
    scheduler = step.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    data = batches(bad=bad)
    for batch in data:
        step(batch)
    step.flush()
    assert step.metrics().skipped == len(bad)
    assert step.metrics().steps == 8
    if where == "host":  # on a device a skipped step is known too late
        assert scheduler.last_epoch == 8 - len(bad)
    good = [batch for place, batch in enumerate(data) if place not in bad]
    assert all(map(torch.equal, snapshot(model, optimizer), trained_by_hand(kind, good)))


def trained_by_hand(kind: str, data: list[Any], clip: float | None = None) -> list[Any]:
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    by_hand(model, optimizer, data, clip)
    return snapshot(model, optimizer)


def test_a_bad_gradient_under_a_good_loss_is_seen() -> None:
    model = network()

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]) * 0.0).abs().sqrt().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = flatout.train_step(model, loss_fn, optimizer, **PLAIN)
    with pytest.raises(NonfiniteError, match=r"the loss is 0\.0; the gradient is not finite in"):
        step(batches(1)[0])


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("kind", ["adamw-fused", "rmsprop"])
def test_stop_on_a_device_comes_a_few_steps_late(kind: str) -> None:
    model, _, step = made(kind)
    data = batches(40, bad=(4,))
    with pytest.raises(NonfiniteError, match=r"step 5: the loss is nan.* in 0\.weight") as caught:
        for batch in data:
            step(batch)
    assert 5 <= step.metrics().steps <= 5 + 2 * histories.BLOCK
    kept = all(bool(torch.isfinite(each).all()) for each in model.parameters())
    assert kept == (kind == "adamw-fused")
    message = "skipped that step" if kept else "RMSprop cannot skip steps"
    assert message in str(caught.value)


@pytest.mark.usefixtures("accelerator")
def test_a_bad_gradient_or_a_bad_loss_alone_is_left_out_on_a_device() -> None:
    model = network()

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return loss + (loss * batch[2]).sqrt() + batch[3]

    optimizer = OPTIMIZERS["adamw-fused"](model.parameters())
    step = flatout.train_step(model, loss_fn, optimizer, nonfinite="skip", **PLAIN)
    for place, batch in enumerate(batches()):
        before = snapshot(model, optimizer)
        step((*batch, 0.0 if place == 5 else 1.0, math.inf if place == 3 else 0.0))
        same = all(map(torch.equal, before, snapshot(model, optimizer))) if place else False
        assert same == (place in (3, 5))
    step.state_dict()
    assert step.metrics().skipped == 2


@pytest.mark.usefixtures("accelerator")
def test_a_bad_last_step_is_told_at_the_end() -> None:
    _, _, step = made("adamw-fused")
    for batch in batches(6, bad=(5,)):
        step(batch)
    assert step.metrics().steps == 6
    with pytest.raises(NonfiniteError, match="step 6: the loss is nan"):
        step.flush()
    assert not step.flush()


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("clip", [None, 0.1, math.inf])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_nothing_is_read_on_a_device(
    clip: float | None, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer, step = made("adamw-fused", clip_norm=clip, accumulate=accumulate)
    data = batches(20)
    for batch in data[:2]:
        step(batch)
    monkeypatch.setattr(Late, "start", lambda self, values: lambda wait: None)
    with monkeypatch.context() as patch:
        for name in ("__float__", "__bool__", "__int__", "item", "tolist"):
            patch.setattr(Tensor, name, lambda *_: pytest.fail("read a tensor"))
        losses = [step(batch) for batch in data[2:]]
        step.metrics()
    assert all(loss.dim() == 0 for loss in losses)
    if accumulate == 1:
        expected = trained_by_hand("adamw-fused", data, clip)
        assert all(map(torch.equal, snapshot(model, optimizer), expected))


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("clip", [None, 0.05])
def test_unequal_batches_weigh_on_a_device_what_they_hold(clip: float | None) -> None:
    """Weights are tensors there, and those of several ranks in float64."""
    model, twin = without_statistics(), without_statistics()
    optimizer, other = (OPTIMIZERS["adamw-fused"](each.parameters()) for each in (model, twin))
    step = flatout.train_step(
        model, F.cross_entropy, optimizer, accumulate=2, clip_norm=clip, **PLAIN
    )
    step._group.weigh = lambda batch: torch.tensor(float(len(batch[1])), dtype=torch.double)
    data = [
        tuple(part[:rows] for part in batch)
        for batch, rows in zip(batches(4), (8, 3, 5, 2), strict=True)
    ]
    for batch in data:
        step(batch)
    pairs = [tuple(map(torch.cat, zip(*data[place : place + 2], strict=True))) for place in (0, 2)]
    by_hand(twin, other, pairs, clip)
    for found, expected in zip(snapshot(model, optimizer), snapshot(twin, other), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Any]) -> Any:
    scaler = torch.amp.GradScaler("cpu")
    for input, target in data:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(input), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return scaler


def through_step(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Any]) -> Any:
    step = flatout.train_step(
        model, F.cross_entropy, optimizer, precision="fp16", compile=False, clip_norm=1.0
    )
    for batch in data:
        step(batch)
    step.close()
    return step


def overflowing() -> list[tuple[Tensor, Tensor]]:
    """Batches that overflow in the backward pass while the loss scale is as large as at first."""
    data = batches()
    for place in (0, 1, 4):
        data[place][0].mul_(3e4)
    return data


def without_statistics() -> nn.Module:
    """BatchNorm's would have seen what GradScaler leaves out."""
    return network()[::2]


@pytest.mark.parametrize("kind", ["adamw-fused", "adagrad-fused", "sgd-foreach", "rmsprop"])
def test_fp16_is_the_loop_with_gradscaler_bit_for_bit(kind: str) -> None:
    model, twin = without_statistics(), without_statistics()
    optimizer, other = (OPTIMIZERS[kind](each.parameters()) for each in (model, twin))
    step = through_step(model, optimizer, overflowing())
    scaler = scaled(twin, other, overflowing())
    assert step.metrics().skipped > 0
    assert step.state_dict()["scaler"] == scaler.state_dict()
    assert all(map(torch.equal, snapshot(model, optimizer), snapshot(twin, other)))


def test_momentum_of_fused_sgd_is_made_in_a_step_that_is_taken() -> None:
    """torch leaves it uninitialised where the first step is skipped on the device."""
    model, twin = without_statistics(), without_statistics()
    optimizer = OPTIMIZERS["sgd-fused"](model.parameters())
    other = OPTIMIZERS["sgd-foreach"](twin.parameters())
    data = overflowing()
    assert through_step(model, optimizer, data).metrics().skipped > 0
    scaled(twin, other, data)
    for found, expected in zip(snapshot(model, optimizer), snapshot(twin, other), strict=True):
        torch.testing.assert_close(found, expected)


def test_fp16_stops_for_a_bad_loss_and_for_an_endless_search() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"precision": "fp16", "compile": False}
    step = flatout.train_step(model, F.cross_entropy, optimizer, **options)
    before = snapshot(model, optimizer)
    with pytest.raises(NonfiniteError, match="step 1: the loss is nan"):
        step(batches(1, bad=(0,))[0])
    assert all(map(torch.equal, before, snapshot(model, optimizer)))
    step.close()

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]).float() * 0.0).abs().sqrt().mean()

    step = flatout.train_step(model, loss_fn, optimizer, **options)
    with pytest.raises(NonfiniteError, match=f"step {update.HOPELESS}"):
        for batch in batches(30):
            step(batch)
    assert step.metrics().skipped == update.HOPELESS
    step.close()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["sgd-fused", "adamw-fused"])
@pytest.mark.parametrize("graph", [False, "auto"])
def test_skip_on_a_gpu_without_waiting_for_it(kind: str, graph: Any) -> None:
    bad = (0, 5, 11)
    data = [tuple(each.cuda() for each in batch) for batch in batches(16, bad=bad)]
    model = network().cuda()
    optimizer = OPTIMIZERS[kind](model.parameters())
    step = flatout.train_step(
        model, F.cross_entropy, optimizer, nonfinite="skip", graph=graph, **PLAIN
    )
    for place, batch in enumerate(data):
        torch.cuda.set_sync_debug_mode("error" if place > 4 and graph is False else "default")
        step(batch)
    torch.cuda.set_sync_debug_mode("default")
    step.state_dict()
    assert step.metrics().skipped == len(bad)
    found = snapshot(model, optimizer)
    twin = network().cuda()
    other = OPTIMIZERS[kind](twin.parameters())
    by_hand(twin, other, [batch for place, batch in enumerate(data) if place not in bad])
    for one, expected in zip(found, snapshot(twin, other), strict=True):
        torch.testing.assert_close(one.cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)
    step.close()


@pytest.mark.gpu
def test_stop_on_a_gpu_leaves_the_weights_good() -> None:
    data = [tuple(each.cuda() for each in batch) for batch in batches(60, bad=(9,))]
    model = network().cuda()
    step = flatout.train_step(
        model, F.cross_entropy, torch.optim.AdamW(model.parameters()), compile=False
    )
    with pytest.raises(NonfiniteError, match="step 10"):
        for batch in data:
            step(batch)
            torch.cuda.synchronize()
    assert step.metrics().steps <= 10 + 2 * histories.BLOCK
    assert all(bool(torch.isfinite(each).all()) for each in model.parameters())
    step.close()


def recorded(step: Any) -> FakeRecorder:
    """Makes the step record itself, with a stand-in for CUDA graphs."""

    def tensors() -> list[Tensor]:
        states = [value for state in step.optimizer.state.values() for value in state.values()]
        held = [*step.model.state_dict(keep_vars=True).values(), *states, *step._buffers._copies]
        return [each for each in held if isinstance(each, Tensor)]

    recorder = FakeRecorder(tensors)
    parts = (step._body, step.model, step.optimizer, step.device)
    step._graph_step = WholeStep(*parts, recorder=recorder)
    return recorder


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("bad", [(), (2,), (6, 9)])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_the_step_as_one_recording(bad: tuple[int, ...], clip: float | None) -> None:
    """With a stand-in for CUDA graphs: what the body does on the device is all there is."""
    model, optimizer, step = made("sgd-fused", nonfinite="skip", clip_norm=clip, ema=0.75)
    recorder = recorded(step)
    data = batches(12, bad=bad)
    losses = [step(batch) for batch in data]
    assert step.notes["graph"] == "recorded"
    assert recorder.replays > 5
    step.state_dict()
    metrics = step.metrics()
    assert (metrics.steps, metrics.calls, metrics.skipped) == (12, 12, len(bad))
    torch.testing.assert_close(
        torch.tensor(metrics.losses), torch.stack(losses), rtol=0, atol=0, equal_nan=True
    )
    twin = network()
    other = OPTIMIZERS["sgd-fused"](twin.parameters())
    average = AveragedModel(twin, multi_avg_fn=get_ema_multi_avg_fn(0.75))  # type: ignore[no-untyped-call]
    good = [batch for place, batch in enumerate(data) if place not in bad]
    by_hand(twin, other, good, clip, average=average)
    for found, expected in zip(snapshot(model, optimizer), snapshot(twin, other), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    if not bad:  # one that the device has left out moves the average to the weights once more
        for found, expected in zip(step.ema.parameters(), average.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("accelerator")
def test_a_rehearsal_that_is_known_to_be_left_out_advances_nothing() -> None:
    """Momentum is made in a step that must not be left out on the device, so the host looks."""
    _, optimizer, step = made("sgd-fused", nonfinite="skip")
    step.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    recorder = recorded(step)
    recorder.waits = "the step waits for the device"
    for batch in batches(bad=tuple(range(6))):
        step(batch)
    assert recorder.rehearsals == 1
    assert step.scheduler.last_epoch == 2


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("kind", ["adamw-fused", "adagrad-fused"])
def test_a_run_that_goes_on_from_a_checkpoint_repeats_a_recorded_one(kind: str) -> None:
    """Its first steps are eager where the first run's were replays: on CUDA the rate's float32
    shows in the weights, here in what the optimizer is given."""
    data = batches(14)
    rates: list[Any] = []

    def trained(state: Any, data: list[Any]) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model, optimizer, step = made(kind)
        own: Any = optimizer.step

        def watched() -> Any:
            rates.append(optimizer.param_groups[0]["lr"])
            return own()

        optimizer.step = watched  # type: ignore[method-assign]
        recorded(step)
        if state is not None:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        for batch in data:
            step(batch)
        assert step.notes["graph"] == "recorded"
        return model, optimizer, step

    model, optimizer, _ = trained(None, data)
    half, its_optimizer, _ = trained(None, data[:7])
    state = copy.deepcopy((half.state_dict(), its_optimizer.state_dict()))
    assert all(not group.get("capturable") for group in state[1]["param_groups"])
    again, other, _ = trained(state, data[7:])
    assert all(isinstance(rate, Tensor) and rate.dtype == torch.float32 for rate in rates)
    for found, expected in zip(snapshot(again, other), snapshot(model, optimizer), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.usefixtures("accelerator")
def test_a_model_in_bfloat16_tells_its_loss_in_float32() -> None:
    model = network().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    step = flatout.train_step(model, F.cross_entropy, optimizer, **PLAIN)
    outputs = step._body((torch.randn(8, 4).to(torch.bfloat16), torch.randint(0, 3, (8,))))
    assert outputs["row"].dtype == outputs["loss"].dtype == torch.float32
    assert step._after_graph(outputs).dtype == torch.float32


@pytest.mark.usefixtures("accelerator")
def test_a_batch_that_had_to_be_split_is_no_recording() -> None:
    model, _, step = made("sgd-fused")
    recorded(step)
    failures = [torch.OutOfMemoryError("once")]

    def out(*_: Any) -> None:
        if failures:
            raise failures.pop()

    model.register_forward_pre_hook(out)
    for batch in batches(6):
        step(batch)
    assert step.metrics().splits == 6
    assert step.notes["graph"] == "no: batches are split to fit into memory"


@pytest.mark.parametrize("shown", ["by the module", "by the gradient"])
def test_sparse_gradients_leave_the_fused_kernel_before_the_first_step(shown: str) -> None:
    """It takes none, and the plain one refuses what tells the fused one to leave a step out."""
    weights = nn.Embedding(5, 2, sparse=shown == "by the module")

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        rows = F.embedding(batch[0], weights.weight, sparse=True)
        return (rows * batch[1]).sum()

    optimizer = torch.optim.SGD(weights.parameters(), lr=0.1)
    made = flatout.train_step(weights, loss_fn, optimizer, compile=False, nonfinite="skip")
    assert made.notes["optimizer"].startswith("fused")
    parts = (made._gradients, made._buffers, made._histories)
    made._update = update.DeviceUpdate(weights, optimizer, *parts, None, "skip", False)
    rows = torch.tensor([0, 1])
    made((rows, torch.ones(())))
    before = weights.weight.detach().clone()
    made((rows, torch.tensor(math.nan)))
    made.flush()
    assert torch.equal(weights.weight, before)
    assert made.metrics().skipped == 1
    assert made.notes["optimizer"] == "as written: some gradients are sparse"
    made.close()
    assert optimizer.param_groups[0]["fused"] is None
