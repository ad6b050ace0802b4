"""Signatures made for a test."""

from __future__ import annotations

from typing import Any

from flatout.nouns.signature import CureStep, Signature, Wording

SAID = Wording("text", "文")


def signature(name: str, *messages: str, **fields: Any) -> Signature:
    """One that is recognised by any of `messages`."""
    given: dict[str, Any] = {
        "family": "test",
        "title": Wording(name, f"{name} 文"),
        "cause": SAID,
        "cure": (CureStep(SAID),),
        **fields,
    }
    return Signature(id=name, any=messages, **given)
