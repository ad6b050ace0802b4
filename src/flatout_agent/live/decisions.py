"""Decisions on boosts as the host reads them."""

from __future__ import annotations

from flatout_agent import wire
from flatout_agent.live import guard, paired
from flatout_agent.live.candidates import Candidate

WIDE = 1.2
"""An interval whose ends are so many times apart says little."""


def decided(
    candidate: Candidate,
    verdict: wire.LiveVerdict,
    reason: str,
    answer: paired.Answer | None,
    guarded: guard.GuardVerdict | None,
    why: wire.WhyUntried | None = None,
) -> wire.Decided:
    """The record of one decision, with what the pairs and the guard found."""
    yardstick = guarded.yardstick if guarded is not None else None
    compared = answer is not None and answer.pairs > 0
    return wire.Decided(
        candidate.id,
        verdict,
        reason,
        params=candidate.params,
        gain=answer.gain if answer is not None and compared else None,
        low=answer.low if answer is not None and compared else None,
        high=answer.high if answer is not None and compared else None,
        pairs=answer.pairs if answer is not None else 0,
        gradient_error=guarded.error if guarded is not None else None,
        batch_noise=yardstick.batch_noise if yardstick is not None else None,
        own_noise=yardstick.redrawn if yardstick is not None else None,
        again=candidate.again,
        why_untried=why,
    )


def unclear(answer: paired.Answer) -> str:
    """What the pairs say so far of a boost on which more of them would decide."""
    return f"{answer.gain:.2f}x so far [{answer.low:.2f}-{answer.high:.2f}]"


def why_not(answer: paired.Answer) -> str:
    """What the pairs say of a boost that is not kept, in one line."""
    spread = f"{answer.low:.2f}-{answer.high:.2f}"
    if answer.low < 1 < answer.high and answer.high > WIDE * answer.low:
        return f"no clear answer in {answer.pairs} pairs: {answer.gain:.2f}x [{spread}]"
    if answer.verdict == "slower":
        return f"slower: {answer.gain:.2f}x [{spread}]"
    return f"no difference that matters: {answer.gain:.2f}x [{spread}]"
