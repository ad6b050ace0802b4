"""compiling: torch's modes with CUDA graphs, generation caches, and older torch's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout_agent.speedups import compiled_blocks
from flatout_agent.speedups.compiling import GRAPH_MODES
from flatout_train.step import compiling
from flatout_train.step.choices import Choices

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
REAL: Any = torch.compile
# Dynamo hides it from people, not from a filter that makes errors of warnings.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compiling, "missing", lambda *_: None)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    assert not torch._dynamo.config.suppress_errors


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The mode of each call of torch.compile, and "mark" for each new run of the graphs."""
    seen: list[str] = []

    def compile_(call: Any, mode: str = "default") -> Any:
        seen.append(mode)
        return call

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(
        torch.compiler, "cudagraph_mark_step_begin", lambda: seen.append("mark"), raising=True
    )
    return seen


def batch(size: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator)


def loss_of(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda pair: F.cross_entropy(model(pair[0]), pair[1])


@pytest.mark.parametrize("mode", GRAPH_MODES)
def test_gradients_that_add_up_are_compiled_without_graphs(mode: str, modes: list[str]) -> None:
    model = nn.Linear(4, 3)
    chosen = compiling.choose(mode, model, loss_of(model), CUDA, accumulate=4)
    assert modes == [compiling.WITHOUT_GRAPHS[mode]]
    assert not set(modes) & set(GRAPH_MODES)
    for _ in range(4):
        chosen.call(batch()).backward()  # type: ignore[no-untyped-call]
    assert "mark" not in modes
    told = f"{compiling.WITHOUT_GRAPHS[mode]} for {mode}: CUDA graphs write over gradients"
    assert told in chosen.reason
    assert told in chosen.note()


@pytest.mark.parametrize("mode", GRAPH_MODES)
def test_a_batch_that_is_split_ends_the_graphs(mode: str, modes: list[str]) -> None:
    model = nn.Linear(4, 3)
    chosen = compiling.choose(mode, model, loss_of(model), CUDA)
    for _ in range(2):
        model.zero_grad()
        chosen.call(batch()).backward()  # type: ignore[no-untyped-call]
    assert modes == [mode, "mark", "mark"]
    assert "CUDA graphs write" not in chosen.note()
    chosen.call(batch(7)).backward()  # type: ignore[no-untyped-call]
    assert modes == [mode, "mark", "mark", compiling.WITHOUT_GRAPHS[mode]]
    assert f"for {mode}: CUDA graphs write over gradients" in chosen.note()
    model.zero_grad()
    chosen.call(batch())
    assert modes[4:] == []


@pytest.mark.parametrize("mode", compiling.MODES)
def test_all_other_modes_are_as_asked_for(mode: str, modes: list[str]) -> None:
    model = nn.Linear(4, 3)
    kept = mode not in GRAPH_MODES
    compiling.choose(mode, model, loss_of(model), CUDA, accumulate=4 if kept else 1)
    assert modes == [mode]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.fc(x))


@pytest.mark.parametrize(
    ("model", "how", "reason"),
    [
        (nn.Sequential(*(Block() for _ in range(3))), "blocks", "3 x Block"),
        (nn.Linear(4, 3), "whole", "model and loss in one graph"),
    ],
)
def test_tuned_compiles_what_auto_would_with_kernels_that_are_timed(
    model: nn.Module, how: str, reason: str, modes: list[str]
) -> None:
    assert compiling.choose("auto", model, loss_of(model), CUDA).how == how
    assert set(modes) == {"default"}
    del modes[:]
    chosen = compiling.choose("tuned", model, loss_of(model), CUDA, accumulate=4)
    assert (chosen.how, chosen.reason) == (how, f"{reason}, {compiling.TUNED}")
    assert set(modes) == {compiling.TUNED}
    chosen.undo()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("asked", ["whole", "tuned", *compiling.MODES])
def test_on_the_cpu_each_keeps_the_random_numbers_of_eager(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def compile_(call: Any, **settings: Any) -> Any:
        seen.append(settings)
        return REAL(call, **settings)  # torch refuses options that it does not know

    monkeypatch.setattr(torch, "compile", compile_)
    model = nn.Linear(4, 3)
    compiling.choose(asked, model, loss_of(model), CPU).undo()
    (options,) = [settings["options"] for settings in seen]
    assert options["fallback_random"] is True
    tuned = asked == "tuned" or "autotune" in asked
    assert ("max_autotune" in options, "coordinate_descent_tuning" in options) == (tuned, tuned)


def test_the_choices_hand_on_how_many_calls_make_a_step(modes: list[str]) -> None:
    model = nn.Linear(4, 3)
    choices = Choices("fp32", "reduce-overhead", "auto", False, accumulate=2)
    choices.compiled(model, loss_of(model), CUDA)
    assert modes == ["default"]
    choices.undo()


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


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real dynamo with a backend that needs no C++ compiler: seconds become milliseconds."""
    monkeypatch.setattr(torch, "compile", lambda call, **_: REAL(call, backend="aot_eager"))


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
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


class Block(nn.Module):
    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.fc, self.is_kv_shared_layer = nn.Linear(4, 4), shared

    def forward(self, x: Tensor, cache: Any) -> Tensor:
        out: Tensor = self.fc(x) + (0 if cache is None else 1)
        return out


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("shared", [False, True])
def test_layers_that_read_what_others_wrote_keep_the_cache(shared: bool) -> None:
    transformers = pytest.importorskip("transformers")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Block(shared and place == 2) for place in range(3))

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


@pytest.mark.parametrize("fails", [False, True])
def test_the_settings_of_older_torch(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(suppress_errors=False, fail_on_cache_limit_hit=fails)
    monkeypatch.setattr(torch._dynamo, "config", config)
    attempts = compiling._Attempts([])
    attempts.close()
    assert attempts.suppress == (not fails)
