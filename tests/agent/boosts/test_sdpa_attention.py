"""sdpa-attention: the same outputs and gradients, the same bits where it stands back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import attention_styles as styles
from attention_results import Boosted, assert_close, assert_same, inputs, nothing_is_left, results
from attention_styles import FUSED, WIDTH, WRITTEN, Annotated, Drawn, NanoGPT, ViT
from flatout_agent.boost import Declined
from flatout_agent.boosts import sdpa_attention as boost
from flatout_agent.speedups.attention import watch
from flatout_agent.wire import JobFacts, ModelFacts

MODEL = ModelFacts("Net", 1_000_000, "float32", "cpu", matmul=2)
FACTS = JobFacts("2.13.0", "3.11", "linux", "cpu", models=(MODEL,))


@pytest.fixture(autouse=True)
def undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However few scores there are."""
    monkeypatch.setattr(watch, "SMALLEST", 1)
    yield
    assert nothing_is_left()


# As written, and fused --------------------------------------------------------------------------


@pytest.mark.parametrize("style", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_same_outputs_and_gradients(style: Any, dtype: torch.dtype) -> None:
    model, x = style().to(dtype), inputs().detach().to(dtype).requires_grad_()
    before = results(model, x)
    with Boosted(model) as boosted:
        assert_close(before, results(model, x))
        assert boosted.fused() == 1
    assert_same(before, results(model, x))


@pytest.mark.parametrize("style", WRITTEN)
def test_the_same_bits_where_nothing_can_be_fused(style: Any) -> None:
    model, x = style(), inputs()
    before = results(model, x)
    with Boosted(model) as boosted:
        for _ in range(5):
            assert_same(before, results(model, x))
            boosted.step()
        assert boosted.applied.engaged() == (
            False,
            "nothing to fuse was seen in 3 calls of 1 modules",
        )


@pytest.mark.parametrize("style", [*FUSED, *WRITTEN])
def test_dropout_of_the_weights_stays_as_written(style: Any) -> None:
    model, x = style(0.2), inputs()
    before = results(model, x)
    with Boosted(model) as boosted:
        after = results(model, x)
        if style in (styles.Llama, styles.Scratch, styles.Alibi, styles.Convolved, styles.Cached):
            assert_close(before, after)  # has none
        elif style is styles.Lucid:
            assert_close(before, after)
        else:
            assert_same(before, after)
            assert not boosted.fused()
            model.eval()(x)
            assert bool(boosted.fused()) == style.fuses
    model.train()
    assert_same(before, results(model, x))


@pytest.mark.parametrize("style", FUSED)
def test_under_autocast(style: Any) -> None:
    model, x = style(), inputs()

    def cast(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    before = results(model, x, cast)
    with Boosted(model) as boosted:
        assert_close(before, results(model, x, cast), 2e-2)
        assert boosted.fused() == 1


@pytest.mark.parametrize("style", [NanoGPT, styles.Bert, Annotated])
def test_gradients_of_gradients(style: Any) -> None:
    model, x = style(), inputs()

    def penalty() -> list[torch.Tensor]:
        (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return [first.detach(), *torch.autograd.grad(first.square().sum(), model.qkv.parameters())]

    before = penalty()
    with Boosted(model) as boosted:
        assert_close(before, penalty())
        assert boosted.fused() == 1


MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda scores, mask: scores,
    "infinite": lambda scores, mask: scores.masked_fill(mask & ~own(mask), float("-inf")),
    "finite": lambda scores, mask: scores.masked_fill(mask, -1e9),
    "low": lambda scores, mask: scores.masked_fill(mask, -1e4),
    "high": lambda scores, mask: scores.masked_fill(mask, -3.0),
    "twice": lambda scores, mask: scores.masked_fill(mask, -1e9).masked_fill(mask.mT, -1e9),
    "unlike": lambda scores, mask: scores.masked_fill(mask, -1e9).masked_fill(mask.mT, -1e5),
    "mixed": lambda scores, mask: scores.masked_fill(mask, -1e9).masked_fill(
        mask.mT & ~own(mask), float("-inf")
    ),
    "added": lambda scores, mask: scores + mask * -10000.0,
    "lowest": lambda scores, mask: scores + mask.float() * torch.finfo(torch.float32).min,
    "bias": lambda scores, mask: scores - mask.float() * 2,
    "where": lambda scores, mask: torch.where(mask, -1e9, scores),
    "both": lambda scores, mask: (scores + mask.float()).masked_fill(
        mask.mT & ~own(mask), float("-inf")
    ),
    "causal": lambda scores, mask: (
        scores + torch.full_like(mask, -torch.inf, dtype=torch.float).triu(1)
    ),
    "ones": lambda scores, mask: scores + torch.ones_like(mask, dtype=torch.float).triu(1),
}


def own(mask: torch.Tensor) -> torch.Tensor:
    return torch.eye(mask.shape[-1], dtype=torch.bool)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(MASKS)),
    batch=st.sampled_from([(1,), (3,), (2, 3), (1, 1)]),
    sizes=st.tuples(st.integers(1, 17), st.integers(1, 9)),
    scale=st.sampled_from([1, 0.125, 3.0, -1.0, 0.0]),
    density=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    seed=st.integers(0, 99),
)
def test_any_shape_scale_and_mask(
    kind: str, batch: Any, sizes: Any, scale: float, density: float, seed: int
) -> None:
    """Also where a query has no key left."""
    length, width = sizes
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, *batch, length, width, generator=generator, requires_grad=True)
    mask = torch.rand(batch[-1], length, length, generator=generator) < density
    model = Drawn(lambda scores: MASKS[kind](scores * scale, mask))
    before = results(model, x)[:2]  # the sum over all is small beside its terms
    with Boosted(model):
        assert_close(before, results(model, x)[:2], 1e-5)


# Transformers -----------------------------------------------------------------------------------


def bert(**options: Any) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=32, attn_implementation="eager", **options,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, 6:] = 0
    return model, {"input_ids": torch.arange(18).view(2, 9), "attention_mask": mask}


def test_transformers_are_set_to_sdpa_and_back() -> None:
    model, batch = bert()
    before = model(**batch).last_hidden_state
    with Boosted(model) as boosted:
        assert model.config._attn_implementation == "sdpa"
        assert torch.allclose(model(**batch).last_hidden_state, before, atol=1e-5)
        assert boosted.applied.engaged() == (
            True,
            "configurations of Transformers set to sdpa: 1",
        )
    assert model.config._attn_implementation == "eager"
    assert torch.equal(model(**batch).last_hidden_state, before)


def test_transformers_stay_eager_where_attentions_are_asked_for() -> None:
    model, batch = bert()
    wanted = model(**batch, output_attentions=True).attentions
    with Boosted(model):
        found = model(**batch, output_attentions=True).attentions
        assert model.config._attn_implementation == "eager"
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted, strict=True))
    model, batch = bert(output_attentions=True)
    with Boosted(model):
        assert model.config._attn_implementation == "eager"
        assert len(model(**batch).attentions) == 2


@pytest.mark.parametrize(("length", "fused"), [(127, 0), (129, 1)])
def test_few_scores_stay_as_written(
    monkeypatch: pytest.MonkeyPatch, length: int, fused: int
) -> None:
    monkeypatch.setattr(watch, "SMALLEST", 4 * 128 * 128)
    model, x = ViT(), inputs(1, length, WIDTH)
    before = results(model, x)
    with Boosted(model) as boosted:
        after = results(model, x)
        assert boosted.fused() == fused
    assert all(map(torch.equal, before, after)) != bool(fused)


@pytest.mark.gpu
@pytest.mark.parametrize("style", FUSED)
def test_on_a_gpu(style: Any) -> None:
    model, x = style().cuda(), inputs().detach().cuda().requires_grad_()
    try:
        before = results(model, x)
    except RuntimeError:
        pytest.skip("its masks are made on the CPU")
    with Boosted(model) as boosted:
        assert_close(before, results(model, x), 1e-2)  # TF32 inside of the kernel, maybe
        assert boosted.fused() == 1


@pytest.mark.gpu
def test_dropout_of_the_weights_is_part_of_the_kernel_on_a_gpu() -> None:
    model, x = NanoGPT(0.5).cuda(), inputs().detach().cuda()
    with Boosted(model) as boosted:
        first, second = model(x), model(x)
        assert boosted.fused() == 2
    assert not torch.equal(first, second)


# The boost itself -------------------------------------------------------------------------------


def test_declined() -> None:
    with pytest.raises(Declined, match="no attention is written out"):
        Boosted(nn.Linear(2, 2))
    with pytest.raises(Declined, match="on meta"):
        Boosted(nn.Linear(2, 2, device="meta"))
    with pytest.raises(Declined, match="DataParallel"):
        Boosted(nn.Sequential(nn.DataParallel(ViT())))
    model = nn.Sequential(ViT(), nn.Linear(2, 2))
    model[1].compile(backend="eager")
    with pytest.raises(Declined, match="compiles"):
        Boosted(model)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, None),
        ({"models": ()}, None),
        ({"device": "mps"}, "on mps"),
        ({"device": "cuda", "deterministic": True}, "deterministic"),
        ({"models": (dataclasses.replace(MODEL, compiled=True),)}, "compiles"),
    ],
)
def test_applies(change: dict[str, Any], word: str | None) -> None:
    reason = boost.applies(dataclasses.replace(FACTS, **change), {})
    assert reason is None if word is None else word in (reason or "")
    assert boost.promise(FACTS, {}) > 1.0
