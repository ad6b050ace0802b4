from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import flatout
from train.step.loops import PLAIN, by_hand, network, same

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


def batches(count: int = 6, rows: int = 12) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(rows, 8), torch.randint(0, 3, (rows,))) for _ in range(count)]


def states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "state": optimizer.state_dict()["state"]}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_plain_step_is_the_plain_loop_bit_for_bit(kind: str, clip: float | None) -> None:
    model, twin = network(), network()
    optimizer, other = OPTIMIZERS[kind](model.parameters()), OPTIMIZERS[kind](twin.parameters())
    step = flatout.train_step(model, nn.CrossEntropyLoss(), optimizer, clip_norm=clip, **PLAIN)
    torch.manual_seed(3)
    losses = [step(batch).item() for batch in batches()]
    torch.manual_seed(3)
    assert losses == by_hand(twin, other, batches(), clip=clip)
    assert same(states(model, optimizer), states(twin, other))


def test_scheduler_and_average_are_those_of_the_loop_by_hand_bit_for_bit() -> None:
    runs = []
    for through_step in (True, False):
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
        torch.manual_seed(3)
        if through_step:
            step = flatout.train_step(
                model, F.cross_entropy, optimizer, scheduler=scheduler, ema=0.9, **PLAIN
            )
            for batch in batches():
                step(batch)
            average = step.ema
        else:
            average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
            by_hand(model, optimizer, batches(), None, scheduler, average)
        assert average is not None
        runs.append(
            (states(model, optimizer), average.state_dict(), scheduler.state_dict()["last_epoch"])
        )
    assert same(*runs)


def test_the_loss_is_a_detached_float_and_gradients_stay_readable() -> None:
    model = network().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = flatout.train_step(model, nn.CrossEntropyLoss(), optimizer, **PLAIN)
    input, target = batches(1)[0]
    loss = step((input.bfloat16(), target))
    assert (loss.dtype, loss.dim(), loss.requires_grad) == (torch.float32, 0, False)
    assert all(each.grad is not None for each in model.parameters())
    wide = network().double()
    step = flatout.train_step(wide, F.cross_entropy, torch.optim.SGD(wide.parameters()), **PLAIN)
    assert step((input.double(), target)).dtype == torch.float64


def test_metrics_are_all_there_on_the_cpu() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = flatout.train_step(
        model, nn.CrossEntropyLoss(), optimizer, clip_norm=math.inf, accumulate=2, **PLAIN
    )
    losses = [step(batch).item() for batch in batches(5)]
    metrics = step.metrics()
    assert (metrics.steps, metrics.calls, metrics.arrived) == (2, 5, 2)
    assert (metrics.skipped, metrics.splits, metrics.loss_scale) == (0, 0, None)
    assert metrics.losses == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:4]) / 2])
    assert len(metrics.grad_norms) == 2
    assert all(norm > 0 for norm in metrics.grad_norms)
    assert step.pending == 1


def test_notes_say_what_was_chosen_and_close_gives_it_back() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    step = flatout.train_step(model, nn.CrossEntropyLoss(), optimizer, compile=False)
    step(batches(1)[0])
    assert set(step.notes) >= {"precision", "layout", "compile", "optimizer", "graph", "memory"}
    assert step.notes["graph"] == "no: the model is on the CPU"
    step.close()
    step.close()
    assert not torch.is_autocast_enabled("cpu")
    step = flatout.train_step(model, nn.CrossEntropyLoss(), optimizer, compile=False, graph=False)
    assert step.notes["graph"] == "no: requested"
    step.close()


@pytest.mark.slow
def test_a_compiled_step_learns() -> None:
    torch.manual_seed(0)
    input = torch.randn(256, 8)
    target = (input[:, 0] > 0).long() + (input[:, 1] > 0).long()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = flatout.train_step(model, F.cross_entropy, optimizer, clip_norm=1.0, compile=True)
    losses = [step((input, target)).item() for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
    assert step.notes["compile"].startswith("whole: 1 graph")
    step.close()


def test_layers_unfrozen_later_are_cleared_too() -> None:
    model, twin = network(), network()
    runs = []
    for net, through_step in ((model, True), (twin, False)):
        for parameter in net[0].parameters():
            parameter.requires_grad_(False)
        rest = [each for each in net.parameters() if each.requires_grad]
        optimizer = torch.optim.SGD(rest, lr=0.1, momentum=0.9)
        step = flatout.train_step(net, F.cross_entropy, optimizer, **PLAIN)
        torch.manual_seed(3)
        for place, batch in enumerate(batches()):
            if place == 3:
                for parameter in net[0].parameters():
                    parameter.requires_grad_(True)
                optimizer.add_param_group({"params": list(net[0].parameters())})
            if through_step:
                step(batch)
            else:
                by_hand(net, optimizer, [batch])
        runs.append(states(net, optimizer))
    assert same(*runs)


def test_sparse_gradients() -> None:
    runs = []
    data = [(torch.randint(0, 20, (6, 3)), torch.randint(0, 4, (6,))) for _ in range(4)]
    for through_step in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.EmbeddingBag(20, 5, sparse=True), nn.Linear(5, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if through_step:
            step = flatout.train_step(model, F.cross_entropy, optimizer, **PLAIN)
            for batch in data:
                step(batch)
        else:
            by_hand(model, optimizer, data)
        runs.append(model.state_dict())
    assert same(*runs)


class Counting(nn.Module):
    """A model that is handed a dict and returns its loss, as Hugging Face's do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, input: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.inner(input)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def loss_of_dict(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch)["loss"]  # type: ignore[no-any-return]


def test_every_form_of_loss_is_the_same_step() -> None:
    pairs = batches(3)
    dicts = [{"input": input, "labels": target} for input, target in pairs]
    results = []
    for loss_fn, data in ((F.cross_entropy, pairs), (loss_of_dict, dicts), (None, dicts)):
        model = Counting()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trained = model.inner if data is pairs else model
        step = flatout.train_step(trained, loss_fn, optimizer, **PLAIN)
        torch.manual_seed(3)
        results.append([step(batch).item() for batch in data])  # type: ignore[attr-defined]
    assert results[0] == results[1] == results[2]


def test_an_average_of_a_sharded_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch cannot copy one."""
    from types import SimpleNamespace

    from flatout_train.errors import UsageError
    from flatout_train.step import ranks

    monkeypatch.setattr(ranks, "of", lambda model: SimpleNamespace(can_reduce=False))
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"ema=0\.9 .* fully_shard"):
        flatout.train_step(model, nn.MSELoss(), optimizer, ema=0.9)
