"""A job's own products timed again in other dtypes and layouts, in the user's interpreter."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from flatout.nouns.product import ProductCalls
from flatout.probing import conversation
from flatout.probing.conversation import Conversation

BUDGET_S = 4.0
"""Seconds for the measurements themselves."""
LIMIT_S = 30.0
"""Seconds for everything, including torch's import; answers up to then count."""
LEAST_SHARE = 0.01
"""Least share of all products' time; a smaller product is not measured."""


def measured(
    products: Sequence[ProductCalls],
    python: str,
    threads: int,
    environ: Mapping[str, str] | None = None,
) -> tuple[ProductCalls, ...]:
    """The products with the seconds of each variant, or unchanged if they cannot be measured.

    Nothing else of flatout may run meanwhile. threads: the number the job computes with.
    """
    total_ms = sum(product.ms for product in products)
    chosen = [number for number, p in enumerate(products) if p.ms >= LEAST_SHARE * total_ms > 0]
    calls = [
        {
            "name": product.name,
            "shapes": product.shapes,
            "dtypes": product.dtypes,
            "values": product.values,
            "backward": product.backward,
            "share": product.ms / total_ms,
        }
        for product in (products[number] for number in chosen)
    ]
    if not calls:
        return tuple(products)
    orders = {"calls": calls, "threads": max(1, threads), "budget_s": BUDGET_S}
    command = [python, str(conversation.program("products")), json.dumps(orders)]
    variables = conversation.environment(os.environ if environ is None else environ)
    answers: dict[int, dict[str, float]] = {}
    deadline = time.monotonic() + LIMIT_S
    with suppress(OSError), Conversation(command, variables) as talk:
        while (answer := talk.answer(deadline)) is not None:
            seconds = answer.get("seconds")
            if isinstance(seconds, dict) and all(
                isinstance(value, float) and value > 0 for value in seconds.values()
            ):
                answers[int(answer["number"])] = seconds
            if answer.get("done"):
                break
    complete = list(products)
    for number, seconds in answers.items():
        if number < len(chosen):
            product = products[chosen[number]]
            complete[chosen[number]] = dataclasses.replace(product, seconds=seconds)
    return tuple(complete)
