"""The data flow of two steps: what nobody reads, what is made anew, where float64 enters."""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from agent.watch.profile.flow.steps import of_two, text
from flatout_agent import wire
from flatout_agent.watch.profile import counting
from flatout_agent.watch.profile.counting import flop_counter as counter
from flatout_agent.watch.profile.flow import constants, follow, hooks
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.results import results

WIDTH = 64


class Loop:
    """A training loop whose variables live from one step to the next, as a script's do."""

    def __init__(self, extra: Callable[[Loop], Any] = lambda loop: None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.extra = extra
        self.kept: list[Any] = []
        self.variable: Any = None
        self.numbers = itertools.count()

    def step(self) -> None:
        self.x = torch.randn(256, WIDTH)
        self.output = self.model(self.x)
        self.variable = self.extra(self)
        loss = self.output.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def followed(self, batch: bool = False, steps: int = 2) -> wire.FlowSeen:
        self.step()
        return of_two(Flow([self.model], lambda: False), [self.model], self.step, steps)


def again(loop: Loop) -> Any:
    return loop.model(loop.x)  # a second time


def test_a_second_forward_pass_on_the_same_input() -> None:
    (row,) = Loop(again).followed().unread
    assert (row.what, row.calls) == ("again()", 1)
    assert row.module == "Sequential"
    assert text(row.where) == "self.variable = self.extra(self)", "the outermost call"
    assert 0.2 < row.flops < 0.4
    (row,) = Loop(lambda loop: loop.model(loop.x).softmax(1)).followed().unread
    assert row.what == "Sequential()", "what follows on the same line is told with it"


def test_a_part_of_a_model_that_nobody_reads() -> None:
    head = nn.Linear(WIDTH, WIDTH)
    (row,) = Loop(lambda loop: head(loop.output)).followed().unread
    assert row.what == "Linear()"
    products = Loop(lambda loop: (loop.output @ loop.output.T).softmax(1)).followed().unread
    assert [set(row.what.split(", ")) for row in products] == [{"mm", "_softmax"}]


def inferred(loop: Loop, read: Callable[[torch.Tensor], Any]) -> Any:
    with torch.inference_mode():
        return read(again(loop).sum())


def with_given_gradient(loop: Loop) -> None:
    output = nn.functional.linear(loop.model(torch.randn(256, WIDTH)), torch.randn(8, WIDTH))
    output.backward(torch.randn_like(output))


def slope(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


class Derivatives:
    """Of a model by its input; the first ones enter the loss."""

    def __init__(self, use: Callable[[torch.Tensor], Any] = lambda second: second) -> None:
        self.use = use

    def __call__(self, loop: Loop) -> Any:
        x = loop.x.requires_grad_()
        first = slope(loop.model(x), x)
        second = slope(first[:, 0], x)[:, 0]  # second derivatives
        second = second + slope(first[:, 1], x)[:, 1]
        first.square().mean().backward(retain_graph=True)
        return self.use(second)


READS: dict[str, Callable[[Loop], Any]] = {
    "item": lambda loop: again(loop).sum().item(),
    "item in inference": lambda loop: inferred(loop, torch.Tensor.item),
    "branch in inference": lambda loop: inferred(loop, bool),
    "numpy": lambda loop: again(loop).detach().numpy().sum(),
    "array": lambda loop: memoryview(again(loop).detach().numpy()).nbytes,
    "tolist": lambda loop: len(again(loop).tolist()),
    "text": lambda loop: str(again(loop)),
    "branch": lambda loop: bool((again(loop) > 0).any()),
    "kept": lambda loop: loop.kept.append(again(loop)),
    "kept without graph": lambda loop: loop.kept.append(again(loop).detach().argmax(1)),
    "next step": lambda loop: (
        again(loop).detach() + (0 if loop.variable is None else loop.variable)
    ),
    "written": lambda loop: TABLE.add_(again(loop).detach()),
    "backward": lambda loop: again(loop).sum().backward(),
    "gradients that are cleared": lambda loop: (
        again(loop).sum().backward(),
        loop.optimizer.zero_grad(),
    ),
    "backward from a given gradient": with_given_gradient,
    "derivatives, printed": Derivatives(lambda second: second.mean().item()),
    "derivatives in the loss": Derivatives(lambda second: second.square().mean().backward()),
    "derivatives, kept": Derivatives(lambda second: TABLE[:, 0].copy_(second.detach())),
    "saved": lambda loop: TABLES.__setitem__(0, again(loop).detach()),
    "deep copy": lambda loop: loop.kept.append(again(loop).detach().__deepcopy__({})),
}
TABLE = torch.zeros(256, WIDTH)
TABLES = torch.zeros(2, 256, WIDTH)


@pytest.mark.parametrize("read", READS)
def test_what_is_read_is_not_told(read: str) -> None:
    assert Loop(READS[read]).followed().unread == ()


def test_derivatives_that_nobody_reads() -> None:
    (row,) = Loop(Derivatives()).followed().unread
    assert (row.what, row.calls) == ("autograd.grad", 2)
    assert text(row.where).startswith("second = "), "those of a function together"
    assert row.s > 0
    assert 0.1 < row.flops < 0.9


def test_of_one_step_nothing_is_said_that_two_would_show() -> None:
    seen = Loop(lambda loop: (again(loop), causal(loop))).followed(steps=1)
    assert (seen.unread, seen.constants) == ((), ())


def causal(loop: Loop) -> Any:
    mask = torch.triu(torch.ones(256, 256), 1) > 0  # a mask
    return (loop.output @ loop.output.T).masked_fill(mask, 0.0).sum().item()


def test_a_mask_that_is_made_in_each_step() -> None:
    (row,) = Loop(causal).followed().constants
    assert text(row.where).endswith("# a mask")
    assert row.operators == ("aten.ones", "aten.triu", "aten.gt")
    assert (row.shape, row.dtype, row.bytes, row.calls) == ("256x256", "bool", 256 * 256, 1)
    assert row.compared
    assert row.s > 0


def test_a_constant_that_is_converted_in_each_step() -> None:
    table = torch.rand(256, WIDTH, dtype=torch.float64)
    (row,) = Loop(lambda loop: (loop.output * table.float()).sum().item()).followed().constants
    assert row.operators == ("aten._to_copy",)


def standardised(loop: Loop) -> Any:
    mean, std = LARGE.mean(0), LARGE.std(0)  # statistics
    return ((loop.output - mean) / (std + 1e-6)).sum().item()


LARGE = torch.rand(20_000, WIDTH)


def test_statistics_of_the_whole_data_are_small_but_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "time", time)
    rows = Loop(standardised).followed().constants
    assert all(text(row.where).endswith("# statistics") for row in rows)
    assert {"aten.mean", "aten.std"} <= {name for row in rows for name in row.operators}


def test_a_number_of_the_whole_data_that_is_read() -> None:
    (row,) = Loop(lambda loop: (loop.output / LARGE.std().item()).sum().item()).followed(
    ).constants  # fmt: skip
    assert row.operators == ("aten.std",)


def grown(loop: Loop) -> float:
    LARGE[0] += 1.0
    return standardised(loop)


def from_counter(loop: Loop) -> Any:
    return (loop.output * torch.full((256, WIDTH), float(next(loop.numbers)))).sum().item()


OTHERS: dict[str, Callable[[Loop], Any]] = {
    "random": lambda loop: (loop.output * torch.rand(256, WIDTH).round()).sum().item(),
    "dropout": lambda loop: (loop.output * torch.ones(256, WIDTH).bernoulli_()).sum().item(),
    "changing": from_counter,
    "filled": lambda loop: torch.zeros(256, WIDTH).copy_(loop.output.detach()).sum().item(),
    "of weights": lambda loop: (loop.output @ loop.model[0].weight.data.t()).sum().item(),
    "as it was": lambda loop: (loop.output * TABLE).sum().item(),
    "statistics of what grows": grown,
    "statistics of a sample": lambda loop: (
        (loop.output - LARGE[torch.randperm(20_000)].mean(0)).sum().item()
    ),
    "scattered into": lambda loop: (
        torch.zeros(256, WIDTH).index_add(0, INDEX, loop.output).sum().item()
    ),
    "changed afterwards": lambda loop: changed_afterwards(torch.arange(WIDTH) * 2.0, loop.output),
}
INDEX = torch.arange(256)


def changed_afterwards(table: torch.Tensor, output: torch.Tensor) -> float:
    wide = table.repeat(256, 1)
    product = output.detach() * wide
    wide += product
    return wide.sum().item()


@pytest.mark.parametrize("other", OTHERS)
def test_what_differs_is_no_constant(other: str) -> None:
    assert Loop(OTHERS[other]).followed().constants == ()


def test_a_batch_is_no_constant() -> None:
    loop = Loop()
    flow = Flow([loop.model], lambda: False)

    def step() -> None:
        batch = {"x": torch.ones(256, WIDTH, dtype=torch.float64), "y": [torch.ones(3)]}
        flow.batch(batch)
        loop.model(batch["x"].float()).sum().backward()

    seen = of_two(flow, [loop.model], step)
    assert seen.constants == ()
    assert [(row.what, row.part) for row in seen.doubles] == [("aten.ones", '["x"]')]


def test_a_batch_of_another_process_in_float64() -> None:
    loop = Loop()
    batch = [torch.ones(256, WIDTH, dtype=torch.float64)]
    flow = Flow([loop.model], lambda: False)

    def step() -> None:
        flow.batch(batch)
        (batch[0] * 2).float().sum().item()

    (row,) = of_two(flow, [loop.model], step, steps=1).doubles
    assert (row.what, row.where, row.part, row.operators) == ("batch", None, "[0]", 2)


def test_where_float64_enters() -> None:
    numbers = torch.rand(WIDTH, dtype=torch.float64).numpy()

    def weighted(loop: Loop) -> Any:
        weight = torch.from_numpy(numbers)  # enters
        return (loop.output * weight).exp().sum().item()

    (row,) = Loop(weighted).followed().doubles
    assert (row.what, text(row.where)[-8:]) == ("aten.lift_fresh", "# enters")
    assert row.operators >= 3
    converted = Loop(lambda loop: loop.output.double().exp().sum().item()).followed().doubles
    assert [row.what for row in converted] == ["aten._to_copy"]
    assert Loop().followed().doubles == ()


def test_no_tensor_is_kept_alive() -> None:
    loop = Loop()
    flow = Flow([loop.model], lambda: False)
    end = counter([loop.model], flow)
    assert end is not None
    loop.step()
    references = [weakref.ref(loop.x), weakref.ref(loop.output)]
    del loop.x, loop.output
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    end()


def test_more_operators_than_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "MOST_OPERATORS", 10)
    loop = Loop(again)
    flow = Flow([loop.model], lambda: False)
    end = counter([loop.model], flow)
    assert end is not None
    loop.step()
    flow.next_step()
    assert end() is not None
    assert not flow.going
    assert results(flow) is None


def test_everything_is_put_back_and_the_result_is_the_same() -> None:
    before = [vars(torch.Tensor).get(name) for name in hooks.READERS]
    engine = vars(torch.autograd)[hooks.ENGINE]
    plain = Loop()
    for _ in range(3):
        plain.step()
    watched = Loop()
    watched.followed()
    for expected, weight in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(expected, weight)
    assert [vars(torch.Tensor).get(name) for name in hooks.READERS] == before
    assert vars(torch.autograd)[hooks.ENGINE] is engine
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_an_error_of_a_model_is_the_programs() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(x)

    loop = Loop()
    flow = Flow([loop.model], lambda: False)
    fails = Fails()

    def step() -> None:
        if not flow.steps:
            with pytest.raises(ValueError, match="tensor"):
                fails(torch.ones(1))
        loop.step()

    assert of_two(flow, [loop.model], step).unread == ()


class Parts(nn.Module):
    """A model with a method beside `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        return x + self.layer(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def test_a_method_of_the_model_is_named_where_it_is_called() -> None:
    def mirrored(loop: Loop) -> None:
        features = loop.model.features(loop.x.flip(-1))  # not read
        loop.kept = [len(features), loop.x.sum().item()]

    loop = Loop(mirrored)
    loop.model = Parts()
    (row,) = loop.followed().unread
    assert (row.what, row.module, row.calls) == ("features()", "Linear", 1)
    assert text(row.where).endswith("# not read")


class Layered(nn.Module):
    """Aggregates what it is given along fixed edges, as layers of graph networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(x) + self.other(EDGES @ x)


EDGES = torch.rand(256, 256)
FEATURES = torch.rand(256, WIDTH)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_layer_on_a_fixed_input_is_no_constant(layers: int) -> None:
    loop = Loop(lambda loop: loop.net(FEATURES).sum().backward())
    loop.net = nn.Sequential(*[Layered() for _ in range(layers)])
    assert len(loop.followed().constants) == (layers == 1)


class Matched(nn.Module):
    """Compares features of what is trained with those of a fixed input, by one frozen network."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU())
        self.features.requires_grad_(False)
        self.kept = self.features(FEATURES) if kept else None

    def reference(self) -> torch.Tensor:
        return self.features(FEATURES)  # fixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        reference = self.kept if self.kept is not None else self.reference()  # the call
        return (self.features(x) - reference).square().mean()


@pytest.mark.parametrize("trained", [False, True])
def test_features_of_a_fixed_input_through_a_frozen_network(trained: bool) -> None:
    loop = Loop(lambda loop: loop.net(loop.output).backward(retain_graph=True))
    loop.net = Matched(kept=False)
    if trained:  # the frozen network is a part of the model
        loop.model.matched = loop.net.features
        loop.model.forward = lambda x: loop.model[2](loop.model[1](loop.model[0](x)))
    (row,) = loop.followed().constants
    assert (row.called, row.calls) == ("reference", 1)
    assert text(row.where).endswith("# fixed")
    assert 0 < row.flops < 0.5


def test_features_that_are_kept_or_trained_are_no_constant() -> None:
    loop = Loop(lambda loop: loop.net(loop.output).backward(retain_graph=True))
    loop.net = Matched(kept=True)
    assert loop.followed().constants == ()
    loop.net = Matched(kept=False)
    loop.net.features.requires_grad_(True)
    assert loop.followed().constants == ()


@pytest.mark.parametrize("width", [WIDTH, WIDTH // 2])
def test_a_target_network_is_renewed_from_time_to_time(width: int) -> None:
    target = nn.Sequential(nn.Linear(WIDTH, width), nn.BatchNorm1d(width), nn.Linear(width, WIDTH))
    target.eval().requires_grad_(False)
    x = torch.randn(256, WIDTH)
    loop = Loop(lambda loop: (loop.output - target(x)).square().sum().item())
    assert len(loop.followed().constants) == (width != WIDTH)


def test_slices_that_cannot_be_compared_are_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MOST_BYTES", 0)  # as on an accelerator
    data = torch.randint(256, (2048, WIDTH), dtype=torch.uint8)

    def weighted(loop: Loop, begin: int) -> float:
        return (loop.output * data[begin : begin + 256].float().exp()).sum().item()

    assert Loop(lambda loop: weighted(loop, 256 * next(loop.numbers))).followed().constants == ()
    (row,) = Loop(lambda loop: weighted(loop, 256)).followed().constants
    assert not row.compared
