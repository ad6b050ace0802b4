"""Attention under bfloat16 autocast on CPUs."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from flatout_agent.boosts import fast_dropout
from flatout_agent.job import Job
from flatout_agent.speedups import attention as attention_module
from flatout_agent.speedups.attention import attention

ORIGINAL = functional.scaled_dot_product_attention


class Net(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.project, self.dropout = nn.Linear(32, 96), dropout
        self.seen = []

    def forward(self, x, mask=None):
        heads = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        out = functional.scaled_dot_product_attention(*heads, attn_mask=mask, dropout_p=p)
        self.seen.append((out.dtype, out.grad_fn))
        return out


def computed_in(grad_fn, operation):
    """The dtype that the inputs of the operation have in the autograd graph, or None."""
    found = [grad_fn]
    for node in found:
        if operation in node.name():
            return node._input_metadata[0].dtype
        found += [following for following, _ in node.next_functions if following is not None]
    return None


def causal():
    return torch.ones(6, 6).tril().bool()


def blind():
    """Rows of the batch with other padding; one has nothing but padding."""
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    mask[0, ..., 4:] = False
    mask[1] = False
    return mask


def lowest():
    """As Transformers writes padding."""
    return torch.zeros(2, 1, 6, 6).masked_fill(~causal(), torch.finfo(torch.float32).min)


MASKS = [None, torch.randn(6, 6), causal(), blind(), lowest()]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("most", [attention_module.MOST_WEIGHTS, 4])
def test_attention_is_what_autocast_computes_but_for_rounding(boosted, monkeypatch, most, mask):
    monkeypatch.setattr(attention_module, "MOST_WEIGHTS", most)
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 6, 32)

    def results():
        model.zero_grad()
        output = model(x, mask).float()
        output.square().sum().backward()
        return output.detach(), model.project.weight.grad

    with torch.autocast("cpu", torch.bfloat16):
        low = results()
    full = results()
    boosted(model)
    found = results()
    dtype, grad_fn = model.seen[-1]
    assert dtype is torch.bfloat16
    tiles = computed_in(grad_fn, "Attention")
    assert tiles is (torch.float32 if most == 4 else None)
    for one, autocast, exact in zip(found, low, full, strict=True):
        assert (one - exact).norm() <= max(1.5 * (autocast - exact).norm(), 0.01 * exact.norm())


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("instructions", ["AMX", "AVX512_BF16"])
def test_dropout_draws_the_same_weights(boosted, mask, instructions):
    model, x = Net(dropout=0.5), torch.randn(2, 6, 32)
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(1)
        low = model(x, mask)
    boosted(model, instructions)
    torch.manual_seed(1)
    output = model(x, mask)
    assert (output - low.float()).norm() < 0.02 * low.norm()
    assert computed_in(model.seen[-1][1], "Baddbmm") is torch.bfloat16
    output.square().sum().backward()
    assert model.project.weight.grad.isfinite().all()


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_grouped_queries_and_masks_with_a_gradient(boosted, p):
    model = Net()
    boosted(model)
    query, key = torch.randn(2, 4, 6, 8, requires_grad=True), torch.randn(2, 2, 6, 8)
    bias = torch.randn(6, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        grouped = functional.scaled_dot_product_attention(
            query, key, key, dropout_p=p, enable_gqa=True
        )
        called = functional.scaled_dot_product_attention(query, query, query, bias, p)
    assert grouped.shape == query.shape
    called.sum().backward()
    assert bias.grad.isfinite().all()


@pytest.mark.parametrize(("instructions", "keys"), [("AMX", 6), ("Arm BF16", 512)])
def test_other_cpus_attend_by_tiles_in_bfloat16(boosted, monkeypatch, instructions, keys):
    """With AMX, where they are filled: here the six keys are as many as a tile holds."""
    monkeypatch.setattr(attention_module, "TILE_KEYS", keys)
    monkeypatch.setattr(attention_module, "HALF_TILE_KEYS", keys)
    model = Net()
    boosted(model, instructions)
    model(torch.randn(2, 6, 32))
    assert computed_in(model.seen[-1][1], "Attention") is torch.bfloat16


def test_with_amx_few_keys_are_attended_to_as_a_whole(boosted, monkeypatch):
    model, x = Net(), torch.randn(2, 6, 32)
    boosted(model, "AMX")
    model(x)
    assert computed_in(model.seen[-1][1], "Baddbmm") is torch.bfloat16
    monkeypatch.setattr(attention_module, "MOST_WEIGHTS_AMX", 4)
    model(x)
    assert computed_in(model.seen[-1][1], "Attention") is torch.float32, "by tiles"
    monkeypatch.setattr(attention_module, "HALF_TILE_KEYS", 6)
    model(x)
    assert computed_in(model.seen[-1][1], "Attention") is torch.bfloat16, "by torch's own tiles"


def test_evaluation_and_the_scripts_other_calls_are_left_alone(boosted):
    model, x = Net(), torch.randn(2, 6, 32)
    boosted(model)
    query = torch.randn(2, 4, 6, 8, requires_grad=True)
    called = functional.scaled_dot_product_attention(query, query, query)
    assert torch.equal(called, ORIGINAL(query, query, query))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        low = copy.deepcopy(model.project)(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        expected = ORIGINAL(*low).float()
    with torch.no_grad():
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize("first", ["precision", "dropout"])
def test_beside_fast_dropout_in_either_order(boosted, first):
    model = Net(dropout=0.5)
    job = Job()
    job.models.append(model)

    def dropout():
        return fast_dropout.apply(job, model, {})

    makers = [lambda: boosted(model), dropout]
    applied = [make() for make in (makers if first == "precision" else makers[::-1])]
    model(torch.randn(64, 6, 32)).sum().backward()
    assert computed_in(model.seen[-1][1], "Baddbmm") is torch.bfloat16
    (_, took_hold) = applied if first == "precision" else applied[::-1]
    assert took_hold.engaged() == (True, "1 masks drawn")
    for made in applied:  # not the last first
        made.undo()
    assert not attention().holders
