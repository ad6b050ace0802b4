"""fp16-autocast with CPU autocast as the seam: scaling, skipping, and nothing left behind."""

import pytest
import torch
from torch import nn

from flatout_agent.boost import Declined
from flatout_agent.boosts import fp16_autocast
from flatout_agent.job import Job
from flatout_agent.speedups.precision import Bf16Support


@pytest.fixture(autouse=True)
def turing(monkeypatch):
    monkeypatch.setattr(fp16_autocast, "_no_use", lambda device: None)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


@pytest.fixture
def boosted():
    job, applied = Job(), []

    def apply(model):
        job.models.append(model)
        applied.append(fp16_autocast.apply(job, model, {}))
        return applied[-1]

    yield apply
    backward = torch.autograd.backward
    for item in applied:
        item.undo()
    assert not applied or torch.autograd.backward != backward, "torch's own again"


def grads(*tensors):
    return torch.cat([tensor.grad.flatten() for tensor in tensors])


def close(one, two):
    return (one - two).norm() < 5e-3 * two.norm()


def test_the_script_sees_true_gradients_also_when_it_accumulates(boosted):
    plain, model, x = network(), network(), torch.randn(16, 8)
    applied = boosted(model)
    for _ in range(2):
        plain(x).square().mean().backward()
        out = model(x)
        assert out.dtype == torch.float32
        out.square().mean().backward()
        assert close(grads(*model.parameters()), grads(*plain.parameters()))
    assert applied.engaged() == (True, "float16 scale 4096, 0 steps skipped")


def test_others_are_told_the_scale_while_it_is_on():
    job, model = Job(), network()
    assert fp16_autocast.loss_scale() == 1
    applied = fp16_autocast.apply(job, model, {})
    assert fp16_autocast.loss_scale() == 4096
    applied.undo()
    assert fp16_autocast.loss_scale() == 1


def test_gradients_too_small_for_float16_survive(boosted):
    plain, model, x = network(), network(), torch.randn(16, 8)
    boosted(model)
    (plain(x).square().mean() * 1e-6).backward()
    (model(x).square().mean() * 1e-6).backward()
    assert close(grads(*model.parameters()), grads(*plain.parameters()))


def test_parameters_outside_the_model_get_true_gradients_too(boosted):
    plain, model, x = network(), network(), torch.randn(16, 8)
    boosted(model)
    found = []
    for net in (plain, model):
        factor = nn.Parameter(torch.tensor(3.0))
        penalty = sum(p.square().sum() for p in net.parameters())
        (net(x).square().mean() * factor + 0.1 * penalty).backward()
        found.append(grads(factor, *net.parameters()))
    assert close(found[1], found[0])


def test_inputs_and_autograd_grad_get_true_gradients(boosted):
    plain, model = network(), network()
    boosted(model)
    found = []
    for net in (plain, model):
        x = torch.ones(4, 8, requires_grad=True)
        net(x).square().mean().backward()
        again = torch.autograd.grad(net(x).square().mean(), [x, *net.parameters()])
        found.append(torch.cat([x.grad.flatten(), *(item.flatten() for item in again)]))
    assert close(found[1], found[0])


def test_a_gan_shares_one_scale(boosted):
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
    boosted(maker)
    boosted(judge)
    x = torch.randn(16, 4)
    judge(maker(x)).square().mean().backward()
    found = grads(*maker.parameters(), *judge.parameters())
    for leaf in (*maker.parameters(), *judge.parameters()):
        leaf.grad = None
    torch.nn.functional.linear(
        torch.nn.functional.linear(x, maker.weight, maker.bias), judge.weight, judge.bias
    ).square().mean().backward()
    assert close(found, grads(*maker.parameters(), *judge.parameters()))


def test_overflow_skips_the_step_and_halves_the_scale(boosted):
    model = network()
    applied = boosted(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    (model(torch.randn(4, 8)).square().mean() * 1e6).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert applied.engaged() == (False, "every step was skipped: gradients overflow float16")
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    assert not any(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert applied.engaged() == (True, "float16 scale 2048, 1 steps skipped")


def test_the_scale_grows_after_good_steps(boosted, monkeypatch):
    monkeypatch.setattr(fp16_autocast, "GROW_AFTER", 2)
    model = network()
    applied = boosted(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    assert applied.engaged() == (True, "float16 scale 16384, 0 steps skipped")


def test_errors_are_torchs_own(boosted):
    model = network()
    boosted(model)
    with pytest.raises(RuntimeError, match="scalar outputs"):
        model(torch.randn(4, 8)).backward()
    model(torch.randn(4, 8)).backward(torch.ones(4, 2))
    assert torch.isfinite(grads(*model.parameters())).all()


def test_undo_leaves_nothing_behind():
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    own, hooks, model = torch.autograd.backward, len(_global_optimizer_pre_hooks), network()
    names = set(model.__dict__)
    applied = fp16_autocast.apply(Job(), model, {})
    assert torch.autograd.backward != own
    applied.undo()
    assert torch.autograd.backward is own
    assert len(_global_optimizer_pre_hooks) == hooks
    assert not any(p._backward_hooks for p in model.parameters())
    assert set(model.__dict__) == names


def test_declined_where_the_script_looks_at_gradients():
    model = network()
    model[0].weight.register_hook(lambda gradient: gradient)
    with pytest.raises(Declined, match="parameters' gradients"):
        fp16_autocast.apply(Job(), model, {})
    model = network()
    model[0].register_full_backward_hook(lambda *_: None)
    with pytest.raises(Declined, match="backward hooks"):
        fp16_autocast.apply(Job(), model, {})
    with pytest.raises(Declined, match="half precision"):
        fp16_autocast.apply(Job(), network().half(), {})


@pytest.mark.parametrize(
    ("native", "capability", "word"),
    [(True, (8, 0), "native"), (False, (6, 1), "6.1"), (False, (7, 5), None)],
)
def test_only_gpus_with_tensor_cores_and_without_bfloat16(monkeypatch, native, capability, word):
    monkeypatch.undo()
    second = torch.device("cuda", 1)  # which need not be the current one
    monkeypatch.setattr(fp16_autocast, "native_bf16", lambda device: Bf16Support(native, ""))
    monkeypatch.setattr(torch.cuda, "get_device_capability", {second: capability}.__getitem__)
    reason = fp16_autocast._no_use(second)
    assert reason is None if word is None else word in reason
    assert "needs a GPU" in fp16_autocast._no_use(torch.device("cpu"))
