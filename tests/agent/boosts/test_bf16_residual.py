"""bf16-residual: the stream's dtype under autocast, compiled as well, and the way back."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import bf16_autocast, bf16_residual
from flatout_agent.job import Job
from flatout_agent.speedups import precision
from flatout_agent.speedups.precision import Bf16Support
from flatout_agent.watch.job_facts import model_facts
from flatout_agent.wire import JobFacts, ModelFacts
from flatout_train import plans

ORIGINAL = functional.embedding
MODEL = ModelFacts("GPT", 1_000_000, "float32", "cuda", matmul=9, embeddings=2)
FACTS: dict[str, Any] = {
    "torch": "2.13.0", "python": "3.11", "system": "linux", "device": "cuda", "bf16": True,
    "models": (MODEL,),
}  # fmt: skip
# Dynamo hides it from people, not from a filter that makes errors of warnings.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.out(functional.gelu(self.fc(self.norm(x))))
        return x + added


class GPT(nn.Module):
    """Without the attention, and with tied words."""

    def __init__(self, words: int = 13, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(8, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        self.stream: list[torch.dtype] = []

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        self.stream = [x.dtype]
        logits: Tensor = self.head(x)
        return logits


def network() -> GPT:
    torch.manual_seed(0)
    return GPT()


def tokens() -> Tensor:
    return torch.randint(13, (4, 8), generator=torch.Generator().manual_seed(1))


def gradients(model: GPT, call: Any = None, on: bool = True) -> Tensor:
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=on):
        logits = (call or model)(tokens())
    functional.cross_entropy(logits.float().flatten(0, 1), tokens().flatten()).backward()
    found = [p.grad for p in model.parameters()]
    assert all(grad is not None and grad.dtype is torch.float32 for grad in found)
    return torch.cat([grad.flatten() for grad in found if grad is not None])


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.fixture
def model() -> GPT:
    return network()


@pytest.fixture
def applied(model: GPT) -> Iterator[Applied]:
    found = bf16_residual.apply(Job(), model, {})
    yield found
    if functional.embedding is not ORIGINAL:
        found.undo()
    assert functional.embedding is ORIGINAL


def test_the_stream_is_bfloat16_and_errs_no_more_than_autocast_does(
    model: GPT, applied: Applied
) -> None:
    assert applied.engaged() == (False, "no embedding was computed under bfloat16 autocast")
    cast = gradients(model)
    assert model.stream == [torch.bfloat16]
    assert applied.engaged() == (True, "embeddings come out in bfloat16")
    applied.undo()
    autocast, exact = gradients(model), gradients(model, on=False)
    assert model.stream == [torch.float32]
    assert 0 < distance(cast, autocast) < 4 * distance(autocast, exact)


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_outside_of_bfloat16_autocast_every_bit_stays(
    dtype: torch.dtype | None, model: GPT, applied: Applied
) -> None:
    def logits() -> Tensor:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            found: Tensor = model(tokens())
        return found

    on = logits()
    assert model.stream == [torch.float32]
    assert applied.engaged() is not None
    assert not (applied.engaged() or (True,))[0]
    applied.undo()
    assert torch.equal(on, logits())


def test_beside_bf16_autocast_the_output_is_float32(
    model: GPT, applied: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "native_bf16", lambda device: Bf16Support(True, "here"))
    autocast = bf16_autocast.apply(Job(), model, {})
    assert model(tokens()).dtype == torch.float32
    assert model.stream == [torch.bfloat16]
    autocast.undo()


@pytest.mark.slow
def test_compiled_code_follows_each_switch(model: GPT) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda batch: model(batch), backend="aot_eager", fullgraph=True)
    plain = gradients(model, compiled)
    applied = bf16_residual.apply(Job(), model, {})
    cast = gradients(model, compiled)
    assert model.stream == [torch.bfloat16]
    assert applied.engaged() == (True, "embeddings come out in bfloat16")
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    applied.undo()
    assert torch.equal(gradients(model, compiled), plain)
    applied = bf16_residual.apply(Job(), model, {})
    assert torch.equal(gradients(model, compiled), cast)
    assert applied.engaged() == (True, "embeddings come out in bfloat16")
    applied.undo()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, "both are kept"
    torch._dynamo.reset()


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_embeddings(reentrant: bool, model: GPT, applied: Applied) -> None:
    def call(batch: Tensor) -> Any:
        start = torch.zeros(1, requires_grad=True)
        return checkpoint(lambda x, _: model(x), batch, start, use_reentrant=reentrant)

    torch.testing.assert_close(gradients(model, call), gradients(model))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_scripts_copies_and_pickles_see_torchs_own(model: GPT, applied: Applied) -> None:
    scripted = torch.jit.script(model.words)
    with torch.autocast("cpu", torch.bfloat16):
        assert scripted(tokens()).dtype == torch.float32
        assert torch.fx.symbolic_trace(nn.Sequential(model.words))(tokens()).shape == (4, 8, 16)
    twins = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    applied.undo()
    for twin in (*twins, model):
        gradients(twin)
        assert twin.stream == [torch.float32]


@pytest.mark.parametrize(
    ("target", "word"),
    [
        (nn.Linear(2, 2), "no embedding"),
        (nn.ModuleList([nn.Embedding(2, 2), nn.LSTM(2, 2)]), "recurrent"),
        (nn.ModuleList([nn.Embedding(2, 2), nn.GRUCell(2, 2)]), "recurrent"),
    ],
)
def test_declined(target: nn.Module, word: str) -> None:
    with pytest.raises(Declined, match=word):
        bf16_residual.apply(Job(), target, {})
    assert functional.embedding is ORIGINAL


def test_embeddings_are_counted(model: GPT) -> None:
    assert model_facts(model).embeddings == 2


def test_a_plan_of_the_library_starts_it(model: GPT, tmp_path: Path) -> None:
    path = tmp_path / "flatout.toml"
    path.write_text("version = 1\n[boosts.bf16-autocast]\n[boosts.bf16-residual]\n", "utf-8")
    started = plans.begin(plans.read(path))
    assert not started.declined
    gradients(model)
    assert model.stream == [torch.bfloat16]
    started()
    assert functional.embedding is ORIGINAL


def test_by_hand_computes_the_same(model: GPT, applied: Applied) -> None:
    cast = gradients(model)
    applied.undo()
    text = bf16_residual.by_hand(JobFacts(**{**FACTS, "device": "cpu"}), {})
    exec(text, {"torch": torch, "model": model})
    assert torch.equal(gradients(model), cast)
