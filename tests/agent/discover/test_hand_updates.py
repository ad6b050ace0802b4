"""Steps of programs that change their weights themselves: each style is counted, none too often."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from discovered import discovered
from flatout_agent.attach.chain import Depth, model_call
from flatout_agent.discover import hand_updates
from flatout_agent.discover.hand_updates import CONFIRMED
from flatout_agent.job import Job
from flatout_agent.speedups import forward_state
from flatout_agent.watch import Watcher
from flatout_agent.watch.looks import look

STEPS = 30
LATE = CONFIRMED + 1
"""Updates of a program of which no step is counted: the first ones, and the last."""


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests compile in this process; what is traced counts by other signs."""
    monkeypatch.setattr(hand_updates.compile, "in_use", lambda: False)


class Counting(Watcher):
    """Notes how many backward passes each step had."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.started_over = 0
        self._backwards = 0

    def backward(self, loss: torch.Tensor) -> None:
        self._backwards += 1

    def start_over(self) -> None:
        self.started_over += 1
        self._backwards = 0

    def step(self) -> None:
        self.steps.append(self._backwards)
        self._backwards = 0


@contextlib.contextmanager
def agent(light: bool = True) -> Iterator[tuple[Job, Counting]]:
    watcher = Counting()
    watcher.light = light
    gradients, call = torch.autograd.grad, nn.Module.__call__
    with discovered(watcher) as (job, _):
        yield job, watcher
    assert torch.autograd.grad is gradients
    assert nn.Module.__call__ is call


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model: nn.Module) -> torch.Tensor:
    return (model(torch.randn(3, 4)) - 1).square().mean()


def in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
            p.grad = None


def through_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.01)
    model.zero_grad()


def other_memory(model: nn.Module) -> None:
    for p in model.parameters():
        p.data = p.data - 0.01 * p.grad
        p.grad = None


def other_parameter(model: nn.Module) -> None:
    for module in model:
        for name, p in list(module.named_parameters()):
            setattr(module, name, nn.Parameter(p.detach() - 0.01 * p.grad))


def together(model: nn.Module) -> None:
    parameters = list(model.parameters())
    with torch.no_grad():
        torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-0.01)
    model.zero_grad()


@pytest.mark.parametrize("light", [True, False])
@pytest.mark.parametrize(
    "update", [in_place, through_data, other_memory, other_parameter, together]
)
def test_each_update_is_a_step(update: Callable[[nn.Module], None], light: bool) -> None:
    with agent(light) as (job, watcher):
        model = net()
        for _ in range(STEPS):
            loss_of(model).backward()
            update(model)
        assert job.by_hand
        assert STEPS - LATE <= job.steps < STEPS
        assert watcher.steps == [1] * job.steps
        assert job.device == "cpu"
        assert len(job.models) == 1


def test_several_backward_passes_are_one_step() -> None:
    with agent() as (job, watcher):
        model = net()
        for _ in range(STEPS):
            for _ in range(4):
                loss_of(model).backward()
            in_place(model)
        assert STEPS - LATE <= job.steps < STEPS
        assert watcher.steps == [4] * job.steps


def test_two_models_in_turn_make_one_step() -> None:
    with agent() as (job, _):
        first, second = net(), net()
        for _ in range(STEPS):
            for model in (first, second):
                loss_of(model).backward()
                in_place(model)
        assert STEPS - LATE <= job.steps < STEPS


def test_gradients_by_autograd_grad_and_weights_beside_the_model() -> None:
    with agent() as (job, _):
        model = net()
        weights = {
            name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()
        }
        for _ in range(STEPS):
            output = torch.func.functional_call(model, weights, (torch.randn(3, 4),))
            loss = (output - 1).square().mean()
            gradients = torch.autograd.grad(loss, list(weights.values()))
            weights = {
                name: (weight - 0.01 * gradient).detach().requires_grad_()
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
            }
        assert STEPS - LATE <= job.steps < STEPS


@pytest.mark.parametrize("anew", [False, True])
def test_plain_tensors_without_a_model(anew: bool) -> None:
    with agent() as (job, watcher):
        torch.manual_seed(0)
        weights = [torch.randn(4, 4).requires_grad_() for _ in range(3)]
        for _ in range(STEPS):
            x = torch.randn(3, 4)
            for weight in weights:
                x = torch.tanh(x @ weight)
            x.sum().backward()
            if anew:
                weights = [(w - 0.01 * w.grad).detach().requires_grad_() for w in weights]
                continue
            with torch.no_grad():
                for weight in weights:
                    weight -= 0.01 * weight.grad
                    weight.grad = None
        assert STEPS - LATE <= job.steps < STEPS
        assert watcher.steps == [1] * job.steps
        assert len(job.models) == 0


def test_losses_of_several_weights_are_one_step() -> None:
    """A loss for each of two weights: the first one's changes are the steps."""
    with agent() as (job, _):
        weights = [torch.randn(4, 4).requires_grad_() for _ in range(2)]
        for _ in range(STEPS):
            for weight in weights:
                (torch.randn(3, 4) @ weight).square().sum().backward()
            with torch.no_grad():
                for weight in weights:
                    weight -= 0.01 * weight.grad
                    weight.grad = None
        assert STEPS - LATE <= job.steps < STEPS


@pytest.mark.parametrize("read", [True, False])
def test_gradients_alone_are_no_step(read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sensitivities are computed, weights loaded: nothing is trained."""
    if not read:  # as on an accelerator
        monkeypatch.setattr(hand_updates, "on_cpu", lambda weight: False)
    with agent() as (job, _):
        model = net()
        saved = {name: value.clone() for name, value in model.state_dict().items()}
        for _ in range(STEPS):
            loss_of(model).backward()
            model.zero_grad()
        for _ in range(STEPS):
            model(torch.randn(3, 4))
            model.load_state_dict({name: value + 1 for name, value in saved.items()})
        assert not job.by_hand
        assert (job.steps, job.backwards) == (0, STEPS)


def test_a_forward_pass_that_rescales_a_weight_makes_no_step() -> None:
    with agent() as (job, _):
        model = nn.Sequential(nn.Embedding(8, 4, max_norm=0.1), nn.Linear(4, 1))
        for _ in range(STEPS):
            model(torch.randint(0, 8, (3,))).sum().backward()
        assert job.steps == 0


def test_an_optimizer_counts_alone() -> None:
    """What happens to the weights beside it is not looked at."""
    with agent() as (job, watcher):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(STEPS):
            loss_of(model).backward()
            optimizer.step()
            in_place(model)
        assert not job.by_hand
        assert job.steps == STEPS
        assert (job.backwards, watcher.started_over) == (1, 0)
        assert "_compiled_call_impl" not in vars(model)


def test_an_optimizer_that_comes_later_takes_over() -> None:
    with agent() as (job, _):
        model = net()
        for _ in range(STEPS):
            loss_of(model).backward()
            in_place(model)
        counted = job.steps
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(STEPS):
            loss_of(model).backward()
            optimizer.step()
        assert not job.by_hand
        assert counted + STEPS <= job.steps <= counted + STEPS + 1
        assert "_compiled_call_impl" not in vars(model)


def test_a_new_model_is_found_again() -> None:
    """As in k-fold training; the old one may live on."""
    with agent() as (job, _):
        models = []
        for _ in range(3):
            models.append(model := net())
            for _ in range(2 * STEPS):
                loss_of(model).backward()
                in_place(model)
        assert len(job.models) == 3
        lost = 2 * (hand_updates.ABSENT + LATE)
        assert 6 * STEPS - lost - LATE <= job.steps < 6 * STEPS


def test_evaluation_between_steps_is_none() -> None:
    with agent() as (job, _):
        model = net()
        for _ in range(STEPS):
            loss_of(model).backward()
            in_place(model)
            model.eval()
            with torch.no_grad():
                model(torch.randn(3, 4))
            model.train()
        assert STEPS - LATE <= job.steps < STEPS


def test_a_weight_whose_values_are_not_read_is_told_by_its_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on an accelerator: `.data` changes neither memory nor version."""
    monkeypatch.setattr(hand_updates, "on_cpu", lambda weight: False)
    with agent() as (job, _):
        model = net()
        for _ in range(2 * STEPS):
            loss_of(model).backward()
            through_data(model)
        counted = job.steps
        assert STEPS < counted < 2 * STEPS
        for _ in range(STEPS):
            loss_of(model).backward()  # added up, and never used
        assert job.steps <= counted + 2  # those under way


def test_what_stands_before_a_call_may_change_its_layers() -> None:
    """A boost is switched where a step ends: the call that follows is made under it."""
    model, seen = net(), []

    def layer(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def layered(*args: torch.Tensor) -> torch.Tensor:
            seen.append(True)
            return call(*args)

        return layered

    undo = model_call(model).stand_before(lambda: model_call(model).wrap(Depth.LAYOUT, layer))
    model(torch.randn(3, 4))
    assert seen == [True]
    undo()
    model(torch.randn(3, 4))
    assert seen == [True, True]


def test_a_look_tells_values_and_survives_odd_tensors() -> None:
    weight = torch.ones(3, requires_grad=True)
    before = look(weight)
    assert look(weight) == before
    weight.data.mul_(2)
    assert look(weight) != before
    assert look(torch.empty(0)) is None
    assert look(torch.eye(2).to_mkldnn()) is None
    with torch.inference_mode():
        odd = torch.ones(2)
    assert look(odd) is None
    assert look(torch.ones(2, device="meta")) == look(torch.ones(2, device="meta"))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_model() -> None:
    """Its parameters and buffers stand in wrappers that are no dicts; `agent` looks for faults."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model = torch.jit.script(layers)
    with agent() as (_, watcher):
        for _ in range(6):
            loss_of(model).backward()
            in_place(model)
    assert sum(watcher.steps) + watcher._backwards >= 3
    restore = forward_state.keep([model])
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(torch.randn(3, 4))
    restore.only_changed()
    changed = dict(model.named_buffers())["1.running_mean"]
    assert not torch.equal(changed, before["1.running_mean"])
    restore()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
