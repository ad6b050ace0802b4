from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

from flatout_agent.boost import Applied
from flatout_agent.boosts import eval_without_grad as boost
from flatout_agent.job import Job
from flatout_agent.wire import JobFacts

FACTS = JobFacts("2.13.0", "3.11", "linux", "cpu", eval_seen=True, eval_with_grad=True)


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    extra: dict[str, Any]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 2)
        self.graphs: list[bool] = []

    def forward(self, x: torch.Tensor, nested: bool = False) -> Any:
        hidden = self.first(x).relu()
        self.graphs.append(hidden.requires_grad)
        logits = self.second(hidden)
        if not nested:
            return logits
        return Answer(logits, {"ids": logits.argmax(-1), "both": [hidden, x], "n": 3})


def _data(seed: int = 0) -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def _apply(net: torch.nn.Module) -> Applied:
    return boost.apply(Job(), net, {})


def _train(net: Net) -> None:
    net.train()
    net(_data()).sum().backward()


def _evaluated_once(net: Net) -> Applied:
    applied = _apply(net)
    _train(net)
    net.eval()
    for seed in range(2):
        net(_data(seed))
        net(_data(seed), nested=True)
    _train(net)
    net.eval()
    net.zero_grad()
    net.graphs.clear()
    return applied


def test_the_second_evaluation_runs_without_a_graph(net: Net) -> None:
    applied = _evaluated_once(net)
    plain = copy.deepcopy(net)
    found = net(_data(7))
    assert net.graphs == [False]
    assert torch.equal(found, plain(_data(7)))
    assert applied.engaged() == (True, "1 evaluation calls without gradients")


def test_the_first_evaluation_is_only_watched(net: Net) -> None:
    applied = _apply(net)
    _train(net)
    net.eval()
    for seed in range(3):
        net(_data(seed))
    assert net.graphs == [True] * 4
    assert applied.engaged() == (
        False,
        "only one evaluation was seen, and the first is only watched",
    )


def test_training_calls_are_left_alone(net: Net) -> None:
    _evaluated_once(net)
    _train(net)
    assert net.graphs == [True]
    assert net.first.weight.grad is not None


def test_nested_outputs_look_as_before(net: Net) -> None:
    _evaluated_once(net)
    answer = net(_data(), nested=True)
    assert net.graphs == [False]
    assert isinstance(answer, Answer)
    hidden, x = answer.extra["both"]
    assert answer.logits.requires_grad
    assert hidden.requires_grad
    assert not x.requires_grad
    assert not answer.extra["ids"].requires_grad
    assert answer.extra["n"] == 3


@pytest.mark.parametrize("with_grad_call", [False, True])
def test_a_backward_after_all_gets_the_right_gradient(net: Net, with_grad_call: bool) -> None:
    applied = _evaluated_once(net)
    plain = copy.deepcopy(net)
    answer, expected = net(_data(3), nested=True), plain(_data(3), nested=True)
    assert net.graphs == [False]
    for model, found in ((net, answer), (plain, expected)):
        loss = found.logits.square().sum() + found.extra["both"][0].sum()
        if with_grad_call:
            for one, grad in zip(
                model.parameters(),
                torch.autograd.grad(loss, list(model.parameters())),
                strict=True,
            ):
                one.grad = grad
        else:
            loss.backward()
    for one, other in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
    net.graphs.clear()
    net(_data(3))
    assert net.graphs == [True], "off for good"
    assert applied.engaged() == (True, "1 evaluation calls without gradients")


def test_gradients_of_gradients(net: Net) -> None:
    _evaluated_once(net)
    plain = copy.deepcopy(net)
    for model in (net, plain):
        loss = model(_data()).square().sum()
        slope = torch.autograd.grad(loss, model.second.weight, create_graph=True)[0]
        slope.square().sum().backward()
    assert net.first.weight.grad is not None
    torch.testing.assert_close(net.first.weight.grad, plain.first.weight.grad)


def test_a_backward_too_late_fails_as_it_would_have(net: Net) -> None:
    _evaluated_once(net)
    found = net(_data())
    with torch.no_grad():
        net.second.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_a_backward_through_the_watched_evaluation_keeps_it_off(net: Net) -> None:
    applied = _apply(net)
    for _ in range(3):  # fine-tuning in eval mode, as with frozen batch norms
        _train(net)
        net.eval()
        net(_data()).sum().backward()
    assert net.graphs == [True] * 6
    reason = "a backward passes through the outputs of evaluation calls"
    assert applied.engaged() == (False, reason)


def test_outputs_used_in_a_later_loss_keep_it_off(net: Net) -> None:
    applied = _apply(net)
    net.eval()
    target = net(_data(1))
    net.train()
    (net(_data(2)) - target).square().sum().backward()
    net.eval()
    net(_data())
    assert net.graphs == [True] * 3
    assert not applied.engaged()[0]  # type: ignore[index]


def test_inputs_with_gradients_are_left_alone(net: Net) -> None:
    _evaluated_once(net)
    attacked = _data().requires_grad_()
    net(attacked).sum().backward()
    assert attacked.grad is not None
    assert net.graphs == [True]


class Holder:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def test_inputs_that_cannot_be_looked_into_are_left_alone(net: Net) -> None:
    class Opaque(Net):
        def forward(self, x: Any, nested: bool = False) -> Any:
            return super().forward(x.x if isinstance(x, Holder) else x, nested)

    opaque = Opaque()
    _evaluated_once(opaque)
    opaque(Holder(_data()))
    assert opaque.graphs == [True]


def test_a_form_never_watched_is_left_alone(net: Net) -> None:
    _evaluated_once(net)
    net(x=_data())
    assert net.graphs == [True]


@pytest.mark.parametrize("change", ["hook", "training part"])
def test_hooks_and_training_parts_are_left_alone(net: Net, change: str) -> None:
    _evaluated_once(net)
    if change == "hook":
        net.first.register_forward_hook(lambda module, inputs, output: None)
    else:
        net.second.train()
    net(_data())
    assert net.graphs == [True]


def test_evaluation_under_no_grad_is_idle(net: Net) -> None:
    applied = _apply(net)
    for _ in range(2):
        _train(net)
        net.eval()
        with torch.no_grad():
            net(_data())
    assert applied.engaged() == (False, "evaluation runs without gradients already")


def test_one_autocast_region_around_both_keeps_training(net: Net) -> None:
    _evaluated_once(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(_data())
        assert net.graphs == [False]
        net.train()
        net(_data()).float().sum().backward()
    assert net.first.weight.grad is not None
    assert net.second.weight.grad is not None


def test_autocast_is_entered_again_for_the_gradient(net: Net) -> None:
    _evaluated_once(net)
    plain = copy.deepcopy(net)
    for model in (net, plain):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(_data())
        found.float().square().sum().backward()
    assert torch.equal(net.first.weight.grad, plain.first.weight.grad)  # type: ignore[arg-type]


def test_saving_outputs_and_model_does_not_warn(net: Net, tmp_path: Any) -> None:
    _apply(net)
    net.eval()
    torch.save(net(_data()), tmp_path / "outputs.pt")
    torch.save(net.state_dict(), tmp_path / "net.pt")


def test_undo_leaves_the_model_as_it_was(net: Net) -> None:
    before = set(net.__dict__)
    applied = _evaluated_once(net)
    assert set(net.__dict__) != before
    applied.undo()
    assert set(net.__dict__) == before
    net(_data())
    assert net.graphs == [True]


@pytest.mark.parametrize(
    ("seen", "with_grad", "reason"),
    [
        (True, True, None),
        (True, False, "evaluation runs without gradients already"),
        (False, False, "no evaluation was seen between the steps"),
    ],
)
def test_applies(seen: bool, with_grad: bool, reason: str | None) -> None:
    facts = dataclasses.replace(FACTS, eval_seen=seen, eval_with_grad=with_grad)
    assert boost.applies(facts, {}) == reason


def test_by_hand_is_python() -> None:
    compile(boost.by_hand(FACTS, {}), "by_hand", "exec")
    assert boost.promise(FACTS, {}) > 1
