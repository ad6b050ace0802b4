"""fast-dropout: the same distribution, the same arithmetic, and the originals put back."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from flatout_agent.boost import Applied
from flatout_agent.boosts import fast_dropout as boost
from flatout_agent.job import Job
from flatout_agent.wire import JobFacts, ModelFacts
from switched import switched, told

MODEL = ModelFacts("Net", 1_000_000, "float32", "cpu", matmul=2, random_forward=True)
FACTS = JobFacts("2.13.0", "3.11", "linux", "cpu", models=(MODEL,))
SMALL, LARGE = 100 * 100, 400 * 500  # by the generator, by the counter
SIZES = [SMALL, LARGE]
ORIGINALS = (functional.dropout, functional.scaled_dot_product_attention)


class Net(nn.Module):
    def __init__(self, p: float = 0.25) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 8)
        self.drop = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.drop(torch.relu(self.first(x))))
        return out


def boosted(model: nn.Module) -> Applied:
    job = Job()
    job.models.append(model)
    return boost.apply(job, model, {})


@pytest.fixture
def applied() -> Iterator[Applied]:
    torch.manual_seed(7)
    with switched(boost) as applied:
        yield applied
    assert (functional.dropout, functional.scaled_dot_product_attention) == ORIGINALS


def kept(size: int, p: float) -> torch.Tensor:
    return (functional.dropout(torch.ones(size), p) != 0).double()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_the_share_kept_is_within_five_deviations(applied: Applied, size: int, p: float) -> None:
    calls = 4_000_000 // size
    count = sum(float(kept(size, p).sum()) for _ in range(calls))
    drawn = calls * size
    assert abs(count - drawn * (1 - p)) < 5 * math.sqrt(drawn * p * (1 - p))
    assert told(applied)[0]


def test_a_probability_between_two_thresholds_is_hit_on_average() -> None:
    p = 0.1
    spares = torch.empty(20_000, dtype=torch.int64).random_(-(1 << 63), None).tolist()
    mean = sum(boost._threshold(p, spare) + 32768 for spare in spares) / len(spares)
    wanted = (1 - p) * 65536
    assert math.floor(wanted) < mean < math.ceil(wanted)
    assert abs(mean - wanted) < 5 * 0.5 / math.sqrt(len(spares))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lag", [None, 1, 2, 3, 4, 5, 8, 64, 500, 512])
def test_neighbours_and_calls_are_independent(applied: Applied, size: int, lag: int | None) -> None:
    """lag: None for calls."""
    values = torch.stack([kept(size, 0.5) - 0.5 for _ in range(1_000_000 // size)])
    pair = (values[1:], values[:-1]) if lag is None else (values[:, lag:], values[:, :-lag])
    product = 4 * pair[0] * pair[1]
    assert abs(float(product.mean())) < 5 / math.sqrt(product.numel())


@pytest.mark.parametrize("kind", [torch.int8, torch.int16], ids=str)
def test_the_mixed_words_are_uniform(kind: torch.dtype) -> None:
    words = torch.arange(1 << 19, dtype=torch.int64).mul_(boost.GAMMA).add_(-987654321)
    boost._mix(words, torch.empty_like(words))
    parts = words.view(kind).long() - torch.iinfo(kind).min
    counts = torch.bincount(parts).double()
    expected = len(parts) / len(counts)
    chi = float(((counts - expected) ** 2 / expected).sum())
    freedom = torch.iinfo(kind).max - torch.iinfo(kind).min
    assert abs(chi - freedom) < 5 * math.sqrt(2 * freedom)


def test_one_changed_bit_of_the_counter_changes_half_of_the_word() -> None:
    words = torch.empty(4096, dtype=torch.int64).random_(-(1 << 63), None)
    spare = torch.empty_like(words)
    for bit in range(64):
        other = words ^ boost._signed(1 << bit)
        pair = [words.clone(), other]
        for item in pair:
            boost._mix(item, spare)
        changed = (pair[0] ^ pair[1]).view(torch.uint8)
        flips = [(changed >> place & 1).double().mean() for place in range(8)]
        assert float(max(flips)) < 0.52
        assert float(min(flips)) > 0.48


@pytest.mark.parametrize("size", SIZES)
def test_the_gradient_takes_the_same_mask(applied: Applied, size: int) -> None:
    x = torch.randn(size, requires_grad=True)
    out = functional.dropout(x, 0.4)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(out, x * grad)
    assert torch.equal(out == 0, grad == 0)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("size", SIZES)
def test_each_precision_keeps_its_dtype(applied: Applied, size: int, dtype: torch.dtype) -> None:
    out = functional.dropout(torch.ones(size, dtype=dtype), 0.5)
    assert out.dtype == dtype
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert told(applied)[0]


def test_under_autocast(applied: Applied) -> None:
    model, x = Net(), torch.randn(100, 32)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert told(applied)[0]


def test_in_place(applied: Applied) -> None:
    x = torch.randn(SMALL)
    before = x.clone()
    assert functional.dropout(x, 0.5, inplace=True) is x
    assert torch.equal(x[x != 0], 2 * before[x != 0])
    leaf = torch.ones(SMALL, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        functional.dropout(leaf, 0.5, inplace=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.5, inplace=True), nn.Linear(64, 8))
    model(torch.randn(100, 32)).sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x.view(10, 20, -1).permute(2, 0, 1),
        lambda x: x[:1].expand(400, -1),
        lambda x: x.view(4, 5, 100, 100).to(memory_format=torch.channels_last),
    ],
)
def test_strides_of_all_kinds(applied: Applied, make: Any) -> None:
    x = make(torch.randn(400, 500))
    out = functional.dropout(x, 0.25)
    reference = ORIGINALS[0](x, 0.25)
    assert (out.shape, out.stride()) == (reference.shape, reference.stride())
    assert abs(float((out != 0).double().mean()) - 0.75) < 5 * math.sqrt(0.1875 / x.numel())
    assert torch.equal(out[out != 0], (x * torch.tensor(1.0).div(0.75))[out != 0])


@pytest.mark.parametrize("threads", [1, 2])
def test_several_threads_fill_every_part(applied: Applied, threads: int) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        parts = kept(2_200_003, 0.5).split(1 << 14)
    finally:
        torch.set_num_threads(before)
    assert all(abs(float(part.mean()) - 0.5) < 5 * 0.5 / math.sqrt(len(part)) for part in parts)


@pytest.mark.parametrize("size", SIZES)
def test_the_same_seed_draws_the_same_masks(applied: Applied, size: int) -> None:
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append([kept(size, 0.5) for _ in range(2)])
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][0], runs[0][1])
    assert not torch.equal(runs[0][0], runs[2][0])


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("rows", [100, 4096])
def test_a_recomputed_forward_pass_draws_the_same_mask(
    applied: Applied, rows: int, reentrant: bool
) -> None:
    model, x = Net(), torch.randn(rows, 32, requires_grad=True)
    grads = []
    for call in (model, lambda x: checkpoint(model, x, use_reentrant=reentrant)):
        torch.manual_seed(3)
        model.zero_grad()
        call(x).square().sum().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    assert told(applied)[0]
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


@pytest.mark.parametrize("masked", ["no", "bool", "float", "causal"])
@pytest.mark.parametrize("autocast", [False, True])
def test_attention_computes_what_torch_computes(
    applied: Applied, monkeypatch: pytest.MonkeyPatch, masked: str, autocast: bool
) -> None:
    """With the mask drawn in torch's own way: the same bits, forward and backward."""

    def as_torch_does(like: torch.Tensor, p: float) -> torch.Tensor:
        return torch.empty_like(like).bernoulli_(1 - p).div_(1 - p)

    monkeypatch.setattr(boost._stand_in().masks, "draw", as_torch_does)
    parts = [torch.randn(2, 4, 48, 16, requires_grad=True) for _ in range(3)]
    options: dict[str, Any] = {"dropout_p": 0.3, "scale": 0.2, "is_causal": masked == "causal"}
    if masked == "bool":
        options["attn_mask"] = torch.rand(48, 48) < 0.7
    if masked == "float":
        options["attn_mask"] = torch.randn(48, 48)
    found = []
    for attention in (ORIGINALS[1], functional.scaled_dot_product_attention):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = attention(*parts, **options)
        found.append([out, *torch.autograd.grad(out.square().sum(), parts)])
    assert told(applied)[0]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_transformer_layer_draws_all_its_masks_here(applied: Applied) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
    layer(torch.randn(8, 32, 32)).sum().backward()
    assert applied.engaged() == (True, "4 masks drawn")


@pytest.mark.parametrize("case", ["half", "grouped", "small", "none"])
def test_attention_that_stays_as_it_is(applied: Applied, case: str) -> None:
    rows = 4 if case == "small" else 64
    parts = [torch.randn(2, 4, rows, 16) for _ in range(3)]
    if case == "half":
        parts = [part.bfloat16() for part in parts]
    options: dict[str, Any] = {"dropout_p": 0.0 if case == "none" else 0.5}
    if case == "grouped":
        options["enable_gqa"] = True
        parts[1:] = [part[:, :2] for part in parts[1:]]
    out = functional.scaled_dot_product_attention(*parts, **options)
    assert out.shape == parts[0].shape
    assert not told(applied)[0]


def test_what_stays_as_it_is(applied: Applied) -> None:
    x = torch.randn(SMALL)
    assert torch.equal(functional.dropout(x, 0.0), x)
    assert torch.equal(functional.dropout(x, 1.0), torch.zeros(SMALL))
    assert torch.equal(functional.dropout(x, 0.5, training=False), x)
    assert functional.dropout(torch.randn(100), 0.5).shape == (100,)
    assert functional.dropout(torch.randn(SMALL, device="meta"), 0.5).is_meta
    assert Net().eval()(torch.randn(100, 32)).shape == (100, 8)
    with pytest.raises(ValueError, match="between 0 and 1"):
        functional.dropout(x, 1.5)
    assert not told(applied)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_compilers_see_torchs_own_attention(applied: Applied) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
    torch.jit.script(layer)
    torch.compile(layer, backend="aot_eager", fullgraph=True)(torch.randn(1, 100, 32))
    assert not told(applied)[0]


def test_copies_and_pickles(applied: Applied) -> None:
    model = Net()
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert list(again.state_dict()) == list(model.state_dict())
    assert pickle.loads(pickle.dumps(functional.dropout)) is functional.dropout


def test_by_hand_drops_out() -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(boost.by_hand(FACTS, {}), names)
    out = names["dropout"](torch.ones(100, 100), 0.25)
    assert abs(float((out != 0).double().mean()) - 0.75) < 5 * math.sqrt(0.1875 / out.numel())
    assert boost.promise(FACTS, {}) > 1.0
