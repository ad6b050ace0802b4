"""Attention under bfloat16 autocast on CPUs where its backward pass is faster in float32."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from flatout_agent.boosts import bf16_autocast, fast_dropout
from flatout_agent.job import Job
from flatout_agent.speedups.attention import attention
from flatout_agent.speedups.precision import Bf16Support

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


@pytest.fixture
def boosted(monkeypatch):
    """A model under the boost on a CPU with these instructions."""

    def apply(model, instructions="AVX512_BF16"):
        support = Bf16Support(True, "native (fake)", instructions)
        monkeypatch.setattr(bf16_autocast, "native_bf16", lambda device: support)
        job = Job()
        job.models.append(model)
        return bf16_autocast.apply(job, model, {})

    yield apply
    assert functional.scaled_dot_product_attention is ORIGINAL


def computed_in(grad_fn):
    """The dtype that the attention's inputs have in the autograd graph."""
    while "Attention" not in grad_fn.name():
        grad_fn = next(node for node, _ in grad_fn.next_functions if node is not None)
    return grad_fn._input_metadata[0].dtype


@pytest.mark.parametrize("mask", [None, torch.zeros(6, 6), torch.ones(6, 6).tril().bool()])
def test_attention_is_computed_in_float32_and_rounded_once(boosted, mask):
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 6, 32)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(x, mask)
    applied = boosted(model)
    output = model(x, mask)
    dtype, grad_fn = model.seen[-1]
    assert dtype is torch.bfloat16 and computed_in(grad_fn) is torch.float32
    assert torch.allclose(output, low.float(), atol=0.02)
    output.square().sum().backward()
    assert model.project.weight.grad.isfinite().all()
    applied.undo()


@pytest.mark.parametrize("instructions", ["AMX", "Arm BF16"])
def test_other_cpus_attend_in_bfloat16(boosted, instructions):
    model = Net()
    applied = boosted(model, instructions)
    model(torch.randn(2, 6, 32))
    assert computed_in(model.seen[-1][1]) is torch.bfloat16
    applied.undo()


def test_evaluation_and_the_scripts_other_calls_are_left_alone(boosted):
    model, x = Net(), torch.randn(2, 6, 32)
    applied = boosted(model)
    query = torch.randn(2, 4, 6, 8, requires_grad=True)
    called = functional.scaled_dot_product_attention(query, query, query)
    assert torch.equal(called, ORIGINAL(query, query, query))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        low = copy.deepcopy(model.project)(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        expected = ORIGINAL(*low).float()
    with torch.no_grad():
        assert torch.equal(model(x), expected)
    applied.undo()


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
    assert model.seen[-1][0] is torch.bfloat16
    model.eval()
    model(torch.randn(2, 6, 32))
    assert computed_in(model.seen[-1][1]) is torch.float32
    for made in applied:  # not the last first
        made.undo()
    assert not attention().holders
