"""Time a job's own matrix products and convolutions as other dtypes and layouts would run them.

This file is started as a program, with its orders as one JSON argument: the calls that a trace
recorded, by operator, shapes, dtypes and the values of their other inputs. Each is repeated on
random numbers, alternating its variants, so other load on the machine affects all of them.
"""

from __future__ import annotations

import ast
import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable  # cannot be subscripted before Python 3.9

    from flatout_programs.tell import Tell

TENSORS = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
}
"""Names of dtypes in a trace, for products that can be repeated."""
LEAST_BATCH_S = 0.001
"""The least seconds of calls in a row that make a clock reading worth it."""
MOST_CALLS = 200
FEWEST_ROUNDS, MOST_ROUNDS = 4, 40
OVERTIME_S = 2.0
"""Seconds that the fewest rounds may take beyond the time limit."""
LEAST_S = 0.05
"""The least seconds for one product, whatever its share."""
MOST_NUMBERS = 1 << 28
"""The most numbers in the inputs of a product, of which every variant has its own."""
WEIGHTS = {"aten::addmm": 2, "aten::mm": 1, "aten::mkldnn_convolution": 1}
"""The input that is a weight in a forward pass, which autocast converts in each step."""


def main(arguments: list[str], tell: Tell) -> None:
    """Orders: calls (name, shapes, dtypes, values, backward, share of the budget), threads,
    budget_s. An answer for each call: its number and seconds by variant, or a note.
    """
    orders = json.loads(arguments[0])
    import torch

    torch.set_num_threads(int(orders["threads"]))
    with torch.no_grad():
        for number, call in enumerate(orders["calls"]):
            try:
                seconds = measure(torch, call, float(orders["budget_s"]) * call["share"])
            except Exception as error:  # noqa: PERF203 - once for each product
                tell({"number": number, "note": " ".join(str(error).split())[:200]})
            else:
                tell({"number": number, "seconds": seconds})
    tell({"done": True})


def measure(torch: Any, call: dict[str, Any], budget_s: float) -> dict[str, float]:
    """Seconds of one call by variant: the fastest of alternating rounds, since other load on the
    machine only adds to them.
    """
    actions = variants(torch, call)
    counts = {name: _warm(action) for name, action in actions.items()}
    rounds: dict[str, list[float]] = {name: [] for name in actions}
    until = time.perf_counter() + max(budget_s, LEAST_S)
    for number in range(MOST_ROUNDS):
        over_s = time.perf_counter() - until
        if number and over_s > (0.0 if number >= FEWEST_ROUNDS else OVERTIME_S):
            break
        for name, action in actions.items():
            began = time.perf_counter()
            for _ in range(counts[name]):
                action()
            rounds[name].append((time.perf_counter() - began) / counts[name])
    return {name: min(seconds) for name, seconds in rounds.items()}


def _warm(action: Callable[[], Any]) -> int:
    """Call it until its code and buffers exist; returns the number of calls in a batch."""
    for _ in range(2):
        action()
    began = time.perf_counter()
    action()
    once_s = max(time.perf_counter() - began, 1e-7)
    return max(1, min(MOST_CALLS, int(LEAST_BATCH_S / once_s)))


def variants(torch: Any, call: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """The call as recorded (`now`), in bfloat16 with the casts that autocast adds, and with the
    channels last where it convolves pictures.
    """
    built = {"now": _action(torch, call, None, last=False)}
    converts = "float" in call["dtypes"]
    pictures = "conv" in call["name"] and any(len(shape) == 4 for shape in call["shapes"])
    if converts:
        built["bfloat16"] = _action(torch, call, "bfloat16", last=False)
    if pictures:
        built["channels-last"] = _action(torch, call, None, last=True)
    if converts and pictures:
        built["bfloat16-channels-last"] = _action(torch, call, "bfloat16", last=True)
    return built


def _action(torch: Any, call: dict[str, Any], dtype: str | None, last: bool) -> Callable[[], Any]:
    operator = getattr(torch.ops.aten, call["name"].partition("::")[2]).default
    positional, named = _inputs(torch, operator, call, dtype, last)
    if dtype is None:
        return lambda: operator(*positional, **named)
    converted = getattr(torch, dtype)
    number = WEIGHTS.get(call["name"])
    if call["backward"]:
        return lambda: _smallest(operator(*positional, **named)).to(torch.float32)
    if number is None:
        return lambda: operator(*positional, **named)
    weight = positional[number].to(torch.float32)

    def forward() -> Any:
        weight.to(converted)
        return operator(*positional, **named)

    return forward


def _smallest(result: Any) -> Any:
    """The smallest of an operator's results: more likely a weight's gradient than the input's."""
    results = (
        [result] if hasattr(result, "numel") else [part for part in result if part is not None]
    )
    matrices = [part for part in results if part.dim() > 1] or results
    return min(matrices, key=lambda part: part.numel())


def _inputs(
    torch: Any, operator: Any, call: dict[str, Any], dtype: str | None, last: bool
) -> tuple[list[Any], dict[str, Any]]:
    if sum(torch.Size(shape).numel() for shape in call["shapes"]) > MOST_NUMBERS:
        raise ValueError("inputs too large to make again")
    positional: list[Any] = []
    named: dict[str, Any] = {}
    recorded = zip(call["shapes"], call["dtypes"], call["values"])
    for argument, (shape, kind, text) in zip(operator._schema.arguments, recorded):
        if kind in TENSORS:
            value = torch.randn(shape, dtype=getattr(torch, dtype or TENSORS[kind]))
            if last and len(shape) == 4:
                value = value.to(memory_format=torch.channels_last)
        elif shape or kind in ("TensorList", "GenericList"):
            raise ValueError(f"inputs of {kind or 'an unknown dtype'}")
        else:
            value = ast.literal_eval(text) if text else None
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return positional, named


if __name__ == "__main__":
    from tell import begin, end  # type: ignore[import-not-found]  # a file of this folder

    main(sys.argv[1:], begin())
    end()
