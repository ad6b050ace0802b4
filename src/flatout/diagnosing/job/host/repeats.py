"""Loops of independent calls, and the time that one batched call for all would save."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flatout.diagnosing.job import flow, host_lines, operators, savings
from flatout.diagnosing.job.host import operator_loops
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Operator, Profile
from flatout_agent.wire import RepeatSeen

FLOPS_PER_MS = 20e6
"""Least rate of a CPU's matrix products, and the rate of its convolutions (few channels)."""
ELEMENT_MS = 0.6e-6
"""Time for one element in operators that add or multiply."""
FUNCTION_MS = 2e-6
"""The same in operators that compute exponentials, powers or random numbers, or that index."""
FUNCTIONS = re.compile(
    r"aten::_?(exp|log|pow|tanh|sigmoid|softmax|gelu|silu|erf|sin|cos|normal|uniform|bernoulli|rand"
    r"|index|gather|scatter|grid_sampler|sort|topk|max|min|argmax|cumsum|native_dropout)\w*"
)
GATHERED = re.compile(
    r"aten::(fill_|zero_|zeros|add_?|slice_backward|select_backward|index_backward)"
)
"""Backward operators: each use of a tensor fills a gradient of its size, and all are summed."""
LEAST_SHARE = 0.1
"""Least share of the step that the loop takes."""
LEAST_PART = 0.2
"""Least share of the loop that one call for all saves; if less, its work is the cost."""


@dataclass(frozen=True)
class RepeatCost:
    """One loop of a step."""

    row: RepeatSeen
    operators: tuple[Operator, ...]
    """The operators of its lines, forward and backward, the costliest first."""
    ms: float
    """Milliseconds of all of it, with the Python between the operators."""
    spared_ms: float
    """Milliseconds that the calls saved take whatever their size."""


def costs(profile: Profile) -> list[RepeatCost]:
    """The costs of all such loops, largest saving first; none if the flow was not followed."""
    seen = flow.of(profile)
    rows = [_cost(profile, row) for row in (seen.repeats if seen is not None else ())]
    return sorted((row for row in rows if row is not None), key=lambda row: -row.spared_ms)


def _cost(profile: Profile, row: RepeatSeen) -> RepeatCost | None:
    """The cost, or None if nothing of it was recorded or other code accounts for it: torch's own
    loop, or an update of the weights, which another check reports.
    """
    by_hand = profile.seen.update if profile.seen is not None else None
    lines = set(row.lines) - set(by_hand.lines if by_hand is not None else ())
    called = [
        operator
        for operator in profile.operators
        if str(operator.where) in lines and operator.host_ms > 0
    ]
    update = sum(operator.host_ms for operator in called if operator.kind is Kind.OPTIMIZER)
    total = sum(operator.host_ms for operator in called)
    of_torch = (operator_loops.called_on(profile, line) for line in lines)
    if not called or 2 * update > total or any(map(operator_loops.is_of_torch, of_torch)):
        return None
    rate = _rate(profile)
    floors = sum(_floor_ms(operator) for operator in called)
    floors -= sum(_product_work_ms(group, rate) for group in _passes(called))
    python = _python_ms(profile, row, called)
    took = min(row.share * (total + python), profile.anatomy.step_ms)
    spared = row.share * (1 - row.kept) * max(floors + python, 0.0)
    return RepeatCost(
        row,
        tuple(sorted(called, key=lambda operator: -operator.host_ms)),
        took,
        min(spared, took),
    )


def _passes(called: Iterable[Operator]) -> list[list[Operator]]:
    """Products by line and pass: the operations and the time may be in different rows."""
    groups: dict[tuple[str, bool], list[Operator]] = {}
    for operator in called:
        groups.setdefault((str(operator.where), operator.backward), []).append(operator)
    return [group for group in groups.values() if any(map(_multiplies, group))]


def _multiplies(operator: Operator) -> bool:
    return bool(
        operators.MULTIPLIES.fullmatch(operator.name)
        or operators.CONVOLVES.fullmatch(operator.name)
    )


def _flops(group: Iterable[Operator]) -> float:
    return sum(operator.flops or 0.0 for operator in group)


def _rate(profile: Profile) -> float:
    """Operations per millisecond of the step's fastest line of products."""
    rates = [
        _flops(group) / spent
        for group in _passes(op for op in profile.operators if op.where is not None)
        if (spent := sum(op.host_ms for op in group if _multiplies(op))) > 0
    ]
    return max([FLOPS_PER_MS, *rates])


def _product_work_ms(group: Sequence[Operator], rate: float) -> float:
    """Milliseconds that the products of one line and pass take at this rate; at most as now."""
    products = [operator for operator in group if _multiplies(operator)]
    if any(operators.CONVOLVES.fullmatch(operator.name) for operator in products):
        rate = FLOPS_PER_MS
    return min(_flops(group) / rate, sum(operator.host_ms for operator in products))


def _floor_ms(operator: Operator) -> float:
    """Its milliseconds without the time for its elements; for products all of them."""
    if _multiplies(operator) or (operator.backward and GATHERED.fullmatch(operator.name)):
        return operator.host_ms
    each = FUNCTION_MS if FUNCTIONS.fullmatch(operator.name) else ELEMENT_MS
    return max(0.0, operator.host_ms - operator.calls * each * _elements(operator))


def _elements(operator: Operator) -> float:
    """Elements of its largest input, the mean over its shapes."""
    sizes = [
        max((operators.elements(shape) for shape in operators.shape(text)), default=0)
        for text in operator.shapes
    ]
    return math.fsum(sizes) / len(sizes) if sizes else 0.0


def _python_ms(profile: Profile, row: RepeatSeen, called: Iterable[Operator]) -> float:
    """Milliseconds sampled on these lines beyond those recorded for their forward operators."""
    lines = host_lines.of(profile, HostKind.TORCH, HostKind.PYTHON)
    sampled = sum(line.ms for line in lines if str(line.where) in (row.where, *row.lines))
    recorded = sum(operator.host_ms for operator in called if not operator.backward)
    return max(0.0, sampled * host_lines.scale(profile) - recorded)


def worth(profile: Profile, cost: RepeatCost, saves_ms: float) -> bool:
    """Whether it is worth a finding: it is large, and much of it can be saved."""
    step_ms = profile.anatomy.step_ms
    large = cost.ms >= LEAST_SHARE * step_ms and saves_ms >= LEAST_PART * cost.ms
    return large and saves_ms >= savings.NOTED * step_ms > 0
