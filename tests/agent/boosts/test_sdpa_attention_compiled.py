"""sdpa-attention beside compile: right in any order, fused where nothing is compiled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from attention_results import assert_close, assert_same, inputs, nothing_is_left, results
from attention_styles import WIDTH, Annotated, NanoGPT, ViT
from flatout_agent.boost import Applied
from flatout_agent.boosts import compile, sdpa_attention
from flatout_agent.job import Job
from flatout_agent.speedups.attention import watch

# Dynamo hides it from people, not from a filter that makes errors of warnings.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Block(nn.Module):
    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norm, self.attention, self.fc = (
            nn.LayerNorm(WIDTH),
            attention(),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        return x + torch.relu(self.fc(x))


class Stack(nn.Module):
    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(3))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


class Pooled(Stack):
    """Its own code computes attention, and calls the blocks in between."""

    def forward(self, x: Any) -> Any:
        scores = x @ x.transpose(-2, -1)
        x = super().forward(x) + scores.softmax(-1) @ x
        return (x @ x.transpose(-2, -1) / 9).softmax(-1) @ x


class Broken(Block):
    """Its graph is broken before its attention, which is then called from outside of any graph."""

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        torch._dynamo.graph_break()
        return torch.relu(self.fc(self.attention(x) + x))


def hooked() -> nn.Module:
    """Dynamo goes through the layers of a module that has hooks."""
    attention = NanoGPT()
    attention.register_forward_hook(lambda module, args, output: output * 2)
    return attention


MODELS: dict[str, Callable[[], nn.Module]] = {
    "in the blocks": lambda: Stack(lambda: Block(NanoGPT)),
    "weights returned": lambda: Stack(lambda: Block(Annotated)),
    "the blocks themselves": lambda: Stack(ViT),
    "around the blocks": lambda: Pooled(lambda: Block(ViT)),
    "with hooks": lambda: Stack(lambda: Block(hooked)),
    "broken graphs": lambda: Stack(lambda: Broken(NanoGPT)),
}


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However few scores there are; with a backend that needs no C++ compiler."""
    real: Any = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, **_: real(call, backend="aot_eager"))
    monkeypatch.setattr(compile, "missing", lambda *_: None)
    monkeypatch.setattr(watch, "SMALLEST", 1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    assert nothing_is_left()


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def fused(applied: Applied) -> int:
    answer = applied.engaged()
    assert answer is not None
    return int(answer[1].split(" attentions")[0].split()[-1]) if answer[0] else 0


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["blocks", "whole"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_same_gradients_whichever_is_first_on_or_off(kind: str, scope: str) -> None:
    torch.manual_seed(0)
    model, x, job = MODELS[kind](), inputs(), Job()
    job.models.append(model)
    on = {
        "compile": lambda: compile.apply(job, model, {"scope": scope}),
        "attention": lambda: sdpa_attention.apply(job, model, {}),
    }
    before = results(model, x)
    made = 0
    for first, last in itertools.product([True, False], repeat=2):
        names = list(on)[:: 1 if first else -1]
        applied = {names[0]: on[names[0]]()}
        assert_close(before, results(model, x), 1e-5)
        applied[names[1]] = on[names[1]]()
        assert_close(before, results(model, x), 1e-5)
        assert applied["compile"].engaged()[0]
        made = made or graphs()
        model.eval()
        before_fused = fused(applied["attention"])
        assert_close(before, results(model, x), 1e-5)
        assert fused(applied["attention"]) > before_fused, "what is not compiled is fused"
        model.train()
        for name in list(applied)[:: 1 if last else -1]:
            applied[name].undo()
            assert_close(before, results(model, x), 1e-5)
    assert graphs() == made, "nothing is compiled anew"
    assert_same(before, results(model, x))


def test_scores_that_reach_compiled_code_are_computed() -> None:
    seen: list[type] = []

    class Handing(nn.Module):
        def forward(self, x: Any) -> Any:
            scores = x @ x.transpose(-2, -1)
            watch.unwatched(lambda item: seen.append(type(item)), (scores,), {})
            return scores.softmax(-1) @ x

    model, x = Handing(), inputs().detach()
    before = model(x)
    applied = sdpa_attention.apply(Job(), model, {})
    assert_close([before], [model(x)])
    assert seen == [torch.Tensor, torch.Tensor]
    applied.undo()


def test_transformers_are_compiled_with_the_attention_that_they_are_set_to() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=32, attn_implementation="eager",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model, job = transformers.BertModel(config, add_pooling_layer=False).train(), Job()
    job.models.append(model)
    words = torch.arange(18).view(2, 9)

    def gradient() -> torch.Tensor:
        model.zero_grad()
        model(words).last_hidden_state.square().sum().backward()
        gradients = (p.grad.flatten() for p in model.parameters() if p.grad is not None)
        return torch.cat(list(gradients))

    before = gradient()
    attention = sdpa_attention.apply(job, model, {})
    compiled = compile.apply(job, model, {"scope": "blocks"})
    for _ in range(2):
        assert_close([before], [gradient()], 1e-5)
    made = graphs()
    attention.undo()
    for _ in range(2):
        assert_close([before], [gradient()], 1e-5)
    assert (made, graphs()) == (1, 2), "one for each kind of attention"
    attention = sdpa_attention.apply(job, model, {})
    assert_close([before], [gradient()], 1e-5)
    assert graphs() == 2
    assert compiled.engaged() == (
        True,
        "4 x BertLayer, 2 graphs, 1 recompilations, 0 graph breaks",
    )
    compiled.undo()
    attention.undo()
    assert torch.equal(gradient(), before)
