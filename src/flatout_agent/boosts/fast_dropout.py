"""Draw dropout masks on the CPU several numbers at a time.

## What it does

Replaces `torch.nn.functional.dropout`, which `nn.Dropout` calls, and the dropout inside
`scaled_dot_product_attention`, for tensors on the CPU in training. A mask's elements are 16-bit
numbers compared with a threshold, four to a 64-bit word. Up to 131,072 elements the words are
torch's own random numbers; above that, they are a counter passed through SplitMix64's mixing
function, by vectorized integer operations in pieces that stay in the cache. Each call takes its
starting point from torch's generator, so a run with the same seed is reproducible, and so is a
recomputed forward pass under activation checkpointing.

## Why it is faster

torch draws the elements of a mask on one core, one by one, for about 5 ns each (except on Intel
CPUs, where MKL draws them). Here one element takes about 1 ns on one core, and large masks are
drawn on several. Measured on one core of an AMD EPYC (Zen 5) with torch 2.13: a dropout of 10,000
elements took 58 microseconds before and 26 after, of 100,000 0.52 and 0.12 ms, of a million 5.6 and
1.2 ms. A training step of transformers of width 128 to 512 took 0.8 to 0.9 of the time.

## When it does nothing

- The model is on an accelerator, compiled, or draws no random numbers.
- Tensors of fewer than 4,096 elements, evaluation, p = 0, p = 1 or within 1/65,536 of them.
- Dropout that is computed elsewhere: between the layers of `nn.LSTM` and `nn.GRU`; of whole
  channels (few numbers); `alpha_dropout`; in attention in half precision or with grouped queries.
- A function that was imported by name (`from torch.nn.functional import dropout`).

## What it may change

The program draws other random numbers. Each element is kept with the probability 1 - p as before:
the threshold is a whole number of 65,536ths, and each call draws whether it is the one below or
above 1 - p. The words passed PractRand up to 4 GiB without an anomaly. Everything computed with a
mask, its memory and its gradient are the same as before.

## How it is undone

Both functions of `torch.nn.functional` are put back.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout.html
- Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators,
  https://doi.org/10.1145/2714064.2660195
- https://pracrand.sourceforge.net/
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Moment, Risk, Switch
from flatout_agent.boosts import counting, require_cpu, speedup, speedup_of_work
from flatout_agent.speedups.attention import attention
from flatout_agent.speedups.stand_in import StandIns, Way, is_plain

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.EXACT,
    moment=Moment.MODEL,
    switch=Switch.STEP,
    redraws=True,
)

BY_ITSELF = "the model is compiled, and draws its masks itself"
LEAST_SHARE = 0.005
"""Share of the step that masks must take; with less there is nothing to gain."""
SMALLEST = 4096
"""Elements of the smallest mask: below, torch's own way costs less than the calls made here."""
SERIAL = 1 << 17
"""Elements up to which torch's generator is used: it is about as fast as the operations that
replace it, which would only wait for each other's threads."""
PIECE = 1 << 18
"""Words mixed at a time: few operations, and two buffers of that size fit into the cache."""
STEPS = 1 << 16
"""Values of a 16-bit number."""
# SplitMix64's increment and factors, as signed numbers.
GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device != "cpu":
        return f"the model is on {facts.device}, which draws masks fast"
    if facts.models and not any(model.random_forward for model in facts.models):
        return "the model's forward pass draws no random numbers"
    if facts.models and all(model.compiled for model in facts.models):
        return BY_ITSELF
    if facts.shares and facts.shares.get("dropout", 1.0) < LEAST_SHARE:
        return f"masks take {facts.shares['dropout']:.1%} of the step"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, as an element of a mask takes as long as about a hundred products."""
    return speedup(facts, dropout=4.0) or speedup_of_work(facts, 1.15)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Replace dropout from now on."""
    require_cpu(target, BY_ITSELF)
    stand_in = _stand_in()
    none = f"no dropout of {SMALLEST:,} elements or more was seen"
    stand_in.hold()
    return Applied(stand_in.let_go, counting(lambda: stand_in.drawn, "masks drawn", none))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch, except for the counter that replaces large draws."""
    return (
        "def dropout(x, p):\n"
        "    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64)\n"
        "    words.random_(-(2**63), None)  # 64 random bits: four numbers of 16\n"
        "    numbers = words.view(torch.int16)[: x.numel()].view(x.shape)\n"
        "    keep = round((1 - p) * 65536) - 32768\n"
        "    mask = torch.lt(numbers, keep, out=torch.empty(x.shape))\n"
        "    return x * mask.div_(1 - p)\n"
    )


class Masks:
    """Draws masks from torch's default generator."""

    def __init__(self) -> None:
        self._counter: Any = None

    def draw(self, like: Any, p: float) -> Any:
        """A mask for `like`: 0 with probability p, else 1 / (1 - p)."""
        import torch

        mask = torch.empty_like(like)
        count = mask.numel()
        # `empty_like` has no holes, whatever the strides of `like`: its memory is one row.
        row = mask.as_strided((count,), (1,))
        if count > SERIAL:
            self._by_counter(row, p)
        else:
            words = self._from_generator(-(-count // 4) + 1)
            numbers = words.view(torch.int16)[:count]
            torch.lt(numbers, _threshold(p, int(words[-1])), out=row).div_(1.0 - p)
        return mask

    def _from_generator(self, count: int) -> Any:
        import torch

        return torch.empty(count, dtype=torch.int64, device="cpu").random_(-(1 << 63), None)

    def _by_counter(self, row: Any, p: float) -> None:
        import torch

        start, spare = self._from_generator(2).tolist()
        threshold = _threshold(p, spare)
        piece = min(PIECE, -(-row.numel() // 4))
        counter = self._multiples(piece)
        words = torch.empty(piece, dtype=torch.int64, device="cpu")
        shifted = torch.empty_like(words)
        numbers = words.view(torch.int16)
        for begin in range(0, row.numel(), 4 * piece):
            torch.add(counter, _signed(start + begin // 4 * GAMMA), out=words)
            _mix(words, shifted)
            part = row[begin : begin + 4 * piece]
            torch.lt(numbers[: part.numel()], threshold, out=part).div_(1.0 - p)

    def _multiples(self, count: int) -> Any:
        """The first multiples of GAMMA, SplitMix64's increment."""
        import torch

        known = self._counter
        if known is None or known.numel() < count:
            known = torch.arange(count, dtype=torch.int64, device="cpu").mul_(GAMMA)
            self._counter = known
        return known[:count]


def _mix(words: Any, shifted: Any) -> None:
    """SplitMix64's mixing of each word in place.

    torch shifts in copies of the sign, not zeros. For the first two shifts that is as good. After
    the last, SplitMix64's exclusive or would clear the highest bit, so an addition is used.
    """
    import torch

    torch.bitwise_right_shift(words, 30, out=shifted)
    words.bitwise_xor_(shifted).mul_(FIRST)
    torch.bitwise_right_shift(words, 27, out=shifted)
    words.bitwise_xor_(shifted).mul_(SECOND)
    torch.bitwise_right_shift(words, 31, out=shifted)
    words.add_(shifted)


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _threshold(p: float, spare: int) -> int:
    """The threshold below which a signed 16-bit number is kept; a random number rounds it up or
    down.
    """
    fraction = (spare & 0xFFFFFFFF) / (1 << 32)
    return int((1.0 - p) * STEPS + fraction) - STEPS // 2


class Dropouts:
    """Replaces functions of torch.nn.functional while at least one model holds it."""

    def __init__(self) -> None:
        import torch

        self.masks = Masks()
        self.drawn = 0
        self._stand_ins = StandIns({torch.nn.functional: {"dropout": self._dropout}})
        self._attention = self._make_attention()

    def hold(self) -> None:
        """Add a holder."""
        self._stand_ins.hold()
        attention().add(self._attention)

    def let_go(self) -> None:
        """Remove a holder."""
        attention().remove(self._attention)
        self._stand_ins.let_go()

    def _dropout(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def dropout(
            input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> Any:
            if not (training and self._takes(p, input) and input.numel() >= SMALLEST):
                return original(input, p, training, inplace)
            self.drawn += 1
            mask = self.masks.draw(input, p)
            return input.mul_(mask) if inplace else input * mask

        return dropout

    def _make_attention(self) -> Way:
        import torch

        weights_of = torch.ops.aten._scaled_dot_product_attention_math

        def scaled_dot_product_attention(
            query: torch.Tensor,
            key: Any,
            value: Any,
            attn_mask: torch.Tensor | None = None,
            dropout_p: float = 0.0,
            is_causal: bool = False,
            **options: Any,
        ) -> Any:
            if not (
                self._takes(dropout_p, query, key, value)
                and not options.get("enable_gqa")
                and self._attends_in_full_precision(query, key)
            ):
                return None
            added = _as_added(attn_mask, query)
            autocast = torch.is_autocast_enabled("cpu") and query.dtype is not torch.float64
            if autocast:  # it rounds the inputs, but torch then computes in float32
                dtype = torch.get_autocast_dtype("cpu")
                query, key, value = (t.to(dtype).float() for t in (query, key, value))
                added = added if added is None else added.to(dtype).float()
            with torch.autocast("cpu", enabled=False):
                # With no columns in `value`, torch computes the weights in its own way and nothing
                # else.
                scale = options.get("scale")
                _, weights = weights_of(
                    query, key, value[..., :0], added, 0.0, is_causal, None, scale=scale
                )
                attended = torch.nn.functional.dropout(weights, dropout_p) @ value
            return attended.to(dtype) if autocast else attended

        return scaled_dot_product_attention

    def _attends_in_full_precision(self, query: torch.Tensor, key: Any) -> bool:
        """Whether torch computes the weights in full precision, and there are enough of them."""
        import torch

        full = query.dtype in (torch.float32, torch.float64) or torch.is_autocast_enabled("cpu")
        if not full or min(query.dim(), key.dim()) < 2:
            return False
        elements = query.numel() // max(1, query.shape[-1]) * key.shape[-2]
        return bool(elements >= SMALLEST)

    def _takes(self, p: Any, *tensors: Any) -> bool:
        """Whether these are plain tensors on the CPU in a plain call, not traced, compiled or
        transformed.
        """
        return (
            bool(self._stand_ins.holders)
            and isinstance(p, float)
            and 1.0 / STEPS <= p <= 1.0 - 1.0 / STEPS
            and is_plain(*tensors)
            and all(item.device.type == "cpu" and item.is_floating_point() for item in tensors)
        )


def _as_added(attn_mask: torch.Tensor | None, query: torch.Tensor) -> Any:
    """The bias that torch adds to the scores for a mask of the keys to attend to."""
    import torch

    if attn_mask is None or attn_mask.dtype is not torch.bool:
        return attn_mask
    zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
    return zeros.masked_fill_(attn_mask.logical_not(), -float("inf"))


@functools.cache
def _stand_in() -> Dropouts:
    """The instance of this process; kept, since torch's table refers to it by address."""
    return Dropouts()
