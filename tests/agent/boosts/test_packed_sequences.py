"""packed-sequences gives what the packed sequence gives, states and gradients included."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from flatout_agent.boosts import packed_sequences
from flatout_agent.job import Job

LENGTHS = torch.tensor([9, 6, 7, 5])
ORIGINALS = torch._VF.lstm, torch._VF.gru


@pytest.fixture(autouse=True)
def short_ones_too(monkeypatch):
    monkeypatch.setitem(packed_sequences.SHORTEST, "gru", 2)


def compute(rnn, states=None, lengths=LENGTHS, autocast=False, twice=False):
    """Everything that a program can see of a training step."""
    torch.manual_seed(1)
    rnn.zero_grad()
    x = torch.randn(int(lengths.max()), len(lengths), 10, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output, last = rnn(pack_padded_sequence(x, lengths, enforce_sorted=False), states)
    assert isinstance(output, PackedSequence)
    last = last if isinstance(last, tuple) else (last,)
    loss = output.data.square().sum() + sum(0.3 * state.square().sum() for state in last)
    if twice:
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        loss = gradient.square().sum()
    loss.backward()
    seen = [output.data, *last, x.grad, *(p.grad for p in rnn.parameters())]
    return [tensor.detach().clone() for tensor in seen], torch.get_rng_state()


def both(rnn, *args, **kwargs):
    """As written and under the boost, and whether it took the call."""
    job = Job()
    job.models.append(rnn)
    written, state = compute(rnn, *args, **kwargs)
    applied = packed_sequences.apply(job, rnn, {})
    boosted, same_state = compute(rnn, *args, **kwargs)
    took, _ = applied.engaged()
    applied.undo()
    assert (torch._VF.lstm, torch._VF.gru) == ORIGINALS
    assert torch.equal(state, same_state), "the same random numbers were drawn"
    return written, boosted, took


def close(written, boosted, share):
    return all(
        a.dtype is b.dtype and (a - b).abs().max() <= share * a.abs().max()
        for a, b in zip(written, boosted, strict=True)
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_outputs_states_and_gradients_are_the_same(kind, bidirectional, layers, bias):
    torch.manual_seed(0)
    rnn = kind(10, 16, layers, bias=bias, bidirectional=bidirectional, dropout=0.5 * (layers > 1))
    written, boosted, took = both(rnn)
    assert took and close(written, boosted, 2e-6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_gradients_of_gradients(kind):
    torch.manual_seed(0)
    written, boosted, took = both(kind(10, 16), twice=True)
    assert took and close(written, boosted, 1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_under_autocast_types_are_those_of_the_program(kind):
    torch.manual_seed(0)
    written, boosted, took = both(kind(10, 16, bidirectional=True), autocast=True)
    assert took and close(written, boosted, 0.05)


def test_large_weights_do_not_open_the_gates():
    torch.manual_seed(0)
    rnn = nn.LSTM(10, 16, bidirectional=True)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.mul_(100.0)
    written, boosted, took = both(rnn)
    assert took and close(written[:4], boosted[:4], 1e-4)


def state_of(rnn, fill):
    directions = rnn.num_layers * (2 if rnn.bidirectional else 1)
    state = torch.full((directions, 4, 16), fill)
    return (state, state) if isinstance(rnn, nn.LSTM) else state


@pytest.mark.parametrize("fill", [0.0, 0.5])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_state_to_begin_with(kind, bidirectional, fill):
    torch.manual_seed(0)
    rnn = kind(10, 16, bidirectional=bidirectional)
    written, boosted, took = both(rnn, state_of(rnn, fill))
    assert close(written, boosted, 2e-6)
    assert took is not (kind is nn.LSTM and bidirectional and fill > 0)


@pytest.mark.parametrize(
    ("rnn", "lengths"),
    [
        (nn.LSTM(10, 16, proj_size=8), LENGTHS),
        (nn.LSTM(10, 16), torch.tensor([20, 1, 1, 1])),
        (nn.LSTM(10, 16), torch.ones(4, dtype=torch.int64)),
        (nn.RNN(10, 16), LENGTHS),
    ],
    ids=["projections", "mostly padding", "one step", "plain RNN"],
)
def test_what_is_left_alone(rnn, lengths):
    written, boosted, took = both(rnn, lengths=lengths)
    assert not took
    assert all(torch.equal(a, b) for a, b in zip(written, boosted, strict=True))


class Tagger(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(10, 16)

    def forward(self, x):
        return self.rnn(x)[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_padded_calls_and_scripted_layers_pass_through(kind):
    model, x = Tagger(kind), torch.randn(5, 3, 10)
    expected = model(x)
    job = Job()
    job.models.append(model)
    applied = packed_sequences.apply(job, model, {})
    assert torch.equal(model(x), expected)
    assert torch.allclose(torch.jit.script(model)(x), expected, atol=1e-6)
    assert not applied.engaged()[0]
    applied.undo()
