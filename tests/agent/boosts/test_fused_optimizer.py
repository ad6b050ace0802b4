"""fused-optimizer against the plain loops, checkpoints included."""

import copy

import pytest
import torch
from torch import nn

from flatout_agent.boost import Declined
from flatout_agent.boosts import fused_optimizer
from flatout_agent.job import Job
from flatout_agent.speedups import fused_updates
from flatout_agent.wire import JobFacts, OptimizerFacts

CASES = [
    (torch.optim.SGD, {"lr": 0.1}, "_fused_sgd"),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "_fused_sgd"),
    (torch.optim.Adam, {"amsgrad": True}, "_fused_adam"),
    (torch.optim.AdamW, {"weight_decay": 0.1}, "_fused_adamw"),
    (torch.optim.Adagrad, {}, "_fused_adagrad"),
    (torch.optim.RMSprop, {}, "foreach"),
    (torch.optim.NAdam, {}, "foreach"),
    (torch.optim.Adadelta, {}, "foreach"),
]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3))


def train(model, optimizer, steps, start=0):
    for number in range(start, start + steps):
        x = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def boosted(optimizer):
    return fused_optimizer.apply(Job(), optimizer, {})


@pytest.mark.parametrize(("kind", "options", "kernel"), CASES)
def test_twenty_steps_are_the_same(kind, options, kernel):
    plain, fast = network(), network()
    train(plain, kind(plain.parameters(), **options), 20)
    optimizer = kind(fast.parameters(), **options)
    applied = boosted(optimizer)
    assert applied.engaged() is None
    train(fast, optimizer, 20)
    torch.testing.assert_close(weights(fast), weights(plain), rtol=1e-4, atol=1e-5)
    assert applied.engaged() == (True, kernel)


@pytest.mark.parametrize(("kind", "options", "kernel"), CASES)
def test_checkpoints_look_as_if_nothing_had_been_there(kind, options, kernel):
    plain, fast = network(), network()
    one, two = kind(plain.parameters(), **options), kind(fast.parameters(), **options)
    boosted(two)
    train(plain, one, 3)
    train(fast, two, 3)
    expected, found = one.state_dict(), two.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    torch.testing.assert_close(found["state"], expected["state"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "options", "kernel"), CASES)
def test_loading_in_the_middle_goes_on_fused(kind, options, kernel):
    model = network()
    optimizer = kind(model.parameters(), **options)
    applied = boosted(optimizer)
    train(model, optimizer, 2)
    kept = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, 3, start=2)
    straight = weights(model)
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    train(model, optimizer, 3, start=2)
    assert torch.equal(weights(model), straight)
    assert applied.engaged() == (True, kernel)


def test_a_resumed_optimizer_goes_on_fused():
    plain = network()
    one = torch.optim.AdamW(plain.parameters())
    train(plain, one, 3)
    fast = copy.deepcopy(plain)
    two = torch.optim.AdamW(fast.parameters())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    boosted(two)
    train(plain, one, 3, start=3)
    train(fast, two, 3, start=3)
    torch.testing.assert_close(weights(fast), weights(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("through", ["state", "closure", "closure=closure"])
def test_gradients_and_state_in_another_memory_order_are_put_right(through):
    """On the CPU a fused kernel accepts another order, but computes something else."""
    torch.manual_seed(0)
    start, grad = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    results = []
    for fast in (False, True):
        parameter = nn.Parameter(start.clone())
        optimizer = torch.optim.AdamW([parameter], lr=0.1)
        if fast:
            boosted(optimizer)

        def closure(parameter=parameter):
            parameter.grad = grad.to(memory_format=torch.channels_last)
            return 7.0

        if through == "state":
            closure()
            optimizer.step()
            state = optimizer.state_dict()
            found = state["state"][0]
            found["exp_avg"] = found["exp_avg"].to(memory_format=torch.channels_last)
            optimizer.load_state_dict(state)
            optimizer.step()
        elif through == "closure":
            assert optimizer.step(closure) == 7.0
        else:
            assert optimizer.step(closure=closure) == 7.0
        results.append(parameter.detach())
    torch.testing.assert_close(results[0], results[1])


def test_groups_added_later_are_fused_too():
    model, extra = network(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    applied = boosted(optimizer)
    optimizer.add_param_group({"params": [extra]})
    extra.grad = torch.ones(3)
    train(model, optimizer, 1)
    assert optimizer.param_groups[1]["fused"] is True
    assert applied.engaged() == (True, "_fused_sgd")
    assert [g["fused"] for g in optimizer.state_dict()["param_groups"]] == [None, None]


def test_the_probe_is_seen_by_nobody():
    from torch.optim.optimizer import register_optimizer_step_post_hook

    seen = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: seen.append(optimizer))
    try:
        boosted(torch.optim.AdamW(network().parameters()))
    finally:
        handle.remove()
    assert seen == []


class Mine(torch.optim.SGD):
    pass


def sparse():
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    return torch.optim.SGD(embedding.parameters(), lr=0.1)


def parameters(dtype=torch.float32):
    return [nn.Parameter(torch.ones(2, dtype=dtype))]


@pytest.mark.parametrize(
    ("optimizer", "word"),
    [
        (lambda: Mine(parameters(), lr=0.1), "not one of"),
        (lambda: torch.optim.AdamW(parameters(), fused=True), "itself"),
        (lambda: torch.optim.AdamW(parameters(), foreach=False), "itself"),
        (lambda: torch.optim.AdamW(parameters(), differentiable=True), "differentiates"),
        (lambda: torch.optim.AdamW(parameters(), lr=torch.tensor(0.1)), "tensor"),
        (lambda: torch.optim.SGD(parameters(torch.complex64), lr=0.1), "complex64"),
        (lambda: torch.optim.LBFGS(parameters()), "LBFGS has no fused"),
        (lambda: torch.optim.SGD(parameters() + parameters(torch.float64)), "differ"),
        (sparse, "sparse"),
    ],
)
def test_declined(optimizer, word):
    target = optimizer()
    flags = [dict(group) for group in target.param_groups]
    with pytest.raises(Declined, match=word):
        boosted(target)
    assert [dict(group) for group in target.param_groups] == flags


def test_sparse_embeddings_are_seen_before_a_closure_has_run():
    job, embedding = Job(), nn.Embedding(4, 2, sparse=True)
    job.models.append(embedding)
    with pytest.raises(Declined, match="sparse"):
        fused_optimizer.apply(job, torch.optim.SGD(embedding.parameters(), lr=0.1), {})


def test_a_device_without_the_kernel_declines_with_torchs_own_words(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("`fused=True` requires all the params to be on some device\nmore")

    monkeypatch.setattr(torch.optim.SGD, "__init__", refuse)
    kernel, reason = fused_updates._probe(torch.optim.SGD, torch.ones(1))
    assert kernel == ""
    assert reason.endswith("to be on some device")


def optimizer_facts(kind="AdamW", **change):
    values = {"from_torch": True, "parameters": 9, "tensors": 2, "dtype": "float32"}
    return OptimizerFacts(**{"kind": kind, "fused": None, "foreach": None, **values, **change})


def facts(device, *optimizers):
    return JobFacts(
        torch="2.13.0", python="3.11", system="linux", device=device, optimizers=optimizers
    )


def test_promise_and_by_hand():
    seen = facts("cpu", optimizer_facts(), optimizer_facts("RMSprop"))
    assert fused_optimizer.promise(seen, {}) > 1.0
    first, second = fused_optimizer.by_hand(seen, {}).split("optimizer = ")[1:]
    for kind, lines in ((optimizer_facts().kind, first), ("RMSprop", second)):
        assert lines.startswith(f"torch.optim.{kind}(")
        model = network()
        optimizer = eval(lines, {"torch": torch, "model": model})
        model(torch.randn(2, 2, 6, 6)).sum().backward()
        optimizer.step()
        group = optimizer.param_groups[0]
        assert group.get("fused") or group["foreach"]
