"""compiling: blocks that are handed a generation cache, as in Hugging Face's models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatout_agent.speedups import compiled_blocks
from flatout_train.step import compiling

CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.usefixtures("traced"),
    # Dynamo hides it from people, not from a filter that makes errors of warnings.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def decoder(kind: str, layers: int) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=50, n_positions=16, n_embd=16, n_layer=layers, n_head=2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config).train()
    config = transformers.LlamaConfig(
        vocab_size=50, max_position_embeddings=16, hidden_size=16, intermediate_size=16,
        num_hidden_layers=layers, num_attention_heads=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_one_graph_serves_all_layers_of_a_decoder(kind: str) -> None:
    """More layers than torch compiles a function anew: each writes to a cache by its number."""
    layers = torch._dynamo.config.recompile_limit + 2
    model, plain = decoder(kind, layers), decoder(kind, layers)
    ids = torch.arange(16).reshape(2, 8)

    def call(model: Any) -> Callable[[Any], Tensor]:
        return lambda ids: model(input_ids=ids, labels=ids).loss  # type: ignore[no-any-return]

    chosen = compiling.choose("blocks", model, call(model), CPU)
    losses = []
    for run in (chosen.call, call(plain)):
        losses.append(run(ids))
        losses[-1].backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(*losses)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-7)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert chosen.note() == "blocks: 1 graphs, 0 recompilations, 0 graph breaks"
    chosen.undo()


def test_caches_that_a_block_may_do_without() -> None:
    transformers = pytest.importorskip("transformers")
    empty, filled, odd = (transformers.DynamicCache() for _ in range(3))
    filled.update(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2), 0)  # a prefix that is trained
    odd.get_seq_length = lambda: 1 / 0
    change = compiled_blocks._without_new_cache
    assert change(empty) is None
    for kept in (filled, odd, torch.ones(2), None, "cache"):
        assert change(kept) is kept


class Sharing(nn.Module):
    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.fc, self.is_kv_shared_layer = nn.Linear(4, 4), shared

    def forward(self, x: Tensor, cache: Any) -> Tensor:
        out: Tensor = self.fc(x) + (0 if cache is None else 1)
        return out


@pytest.mark.parametrize("shared", [False, True])
def test_layers_that_read_what_others_wrote_keep_the_cache(shared: bool) -> None:
    transformers = pytest.importorskip("transformers")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Sharing(shared and place == 2) for place in range(3))

        def forward(self, x: Tensor) -> Tensor:
            cache = transformers.DynamicCache()
            for layer in self.layers:
                x = layer(x, cache)
            return x

    model, x = Model(), torch.zeros(2, 4)
    expected = model(x)
    chosen = compiling.choose("blocks", model, lambda x: model(x).sum(), CPU)
    same = bool(torch.equal(chosen.call(x), expected.sum()))
    assert same == shared
    chosen.undo()
