"""Where the time of a step goes: kinds of operations, and their shares."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.live import calls, op_shares
from guarded import Made, everything, mlp, vectors
from planted import assert_unharmed, planted, times

pytestmark = pytest.mark.usefixtures("one_thread")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(self.embed(x))
        return out


def recorded(model: nn.Module, x: torch.Tensor) -> calls.RecordedCall:
    call = calls.begin(model, (x,), {})
    output = model(x)
    calls.finish(call, output)
    output.square().mean().backward()
    return call


MODELS: dict[str, tuple[Any, Any, set[str]]] = {
    "layers": (mlp, lambda: torch.randn(8, 20), {"products"}),
    "images": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        lambda: torch.randn(2, 3, 9, 9),
        {"convolutions", "norms", "others"},
    ),
    "attention": (
        Attention,
        lambda: torch.randint(30, (3, 7)),
        {"products", "norms", "dropout", "embeddings", "others"},
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_operation_has_its_kind_forward_and_backward(kind: str) -> None:
    make, data, kinds = MODELS[kind]
    found = op_shares.measure(recorded(make(), data()))
    assert kinds <= set(found.seconds)
    assert all(value > 0 for value in found.seconds.values())
    assert found.number >= 2 * len(kinds)


def test_products_of_sparse_matrices_are_a_kind_of_their_own() -> None:
    model = Made(
        lambda model, batch: torch.sparse.mm(model.matrix, model.layer(batch)),
        layer=nn.Linear(4, 4),
        matrix=torch.eye(6).to_sparse(),
    )
    seconds = op_shares.measure(recorded(model, torch.randn(6, 4))).seconds
    assert seconds["sparse"] > 0
    assert seconds["products"] > 0


def test_measuring_leaves_no_trace() -> None:
    model = Attention()
    call = recorded(model, torch.randint(30, (3, 7)))
    before = everything(model)
    op_shares.measure(call)
    after = everything(model)
    assert str(before) == str(after)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("products", "addmm bmm baddbmm mv mkldnn_rnn_layer_backward"),
        ("convolutions", "convolution_backward"),
        ("norms", "native_layer_norm_backward native_batch_norm"),
        ("softmax", "_softmax_backward_data"),
        ("attention", "_scaled_dot_product_flash_attention_for_cpu_backward"),
        ("embeddings", "embedding_dense_backward"),
        ("dropout", "bernoulli_ native_dropout_backward"),
        ("others", "mul dot_product mmap normal_"),
    ],
)
def test_kinds(kind: str, names: str) -> None:
    assert {op_shares.kind_of(name) for name in names.split()} == {kind}


def test_shares_are_of_the_step_and_at_most_all_of_it() -> None:
    seconds = {"products": 0.02, "optimizer": 0.01}
    half = op_shares.shares(seconds, 0.06)
    assert set(half) == set(op_shares.NAMES)
    assert (half["products"], half["optimizer"], half["dropout"]) == pytest.approx(
        (1 / 3, 1 / 6, 0)
    )
    whole = op_shares.shares(seconds, 0.01)  # a clock around each operation costs time as well
    assert sum(whole.values()) == pytest.approx(1.0)
    assert op_shares.shares({}, 0.0) == {}


def test_a_running_program_tells_them_and_trains_on_as_it_would(program) -> None:
    run = program(right=planted(times(1.0)), data=vectors)
    story = op_shares.of_a_unit(run.checks)
    next(story)
    found = op_shares.Operations()
    for _ in range(5):
        run.step()
        try:
            story.send(None)
        except StopIteration as done:
            found = done.value
            break
    assert found.seconds["products"] > 0
    assert found.number > 4
    assert not run.checks._recorded.purpose
    assert_unharmed(run)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its own
def test_a_model_that_cannot_be_called_again_tells_nothing(program) -> None:
    run = program(nn.Sequential(torch.compile(nn.Linear(20, 20)), nn.Linear(20, 10)))
    run.model[1].register_forward_hook(lambda *args: None)
    assert run.ask(op_shares.of_a_unit(run.checks)) == op_shares.Operations()
