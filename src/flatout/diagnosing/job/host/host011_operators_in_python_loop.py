"""Operators are called one by one from a Python loop, though one call could do for all.

## What it sees

A line outside of the model's forward pass that calls operators 24 times a step or more, each so
small that the call takes longer than the work, for 4 % of the step or more:
filling a mask element by element, `.item()` for each parameter, a loss summed over samples, an
average of weights parameter by parameter. Functions of torch that go through all weights, such as
`clip_grad_norm_` and `AveragedModel.update_parameters`, are reported only if the script calls them
in a loop.

Also a loop, in the model or outside of it, whose rounds need nothing of each other by the data flow
of a step: a convolution for each channel, attention head by head, augmentation image by image. One
call for all would save eight or more calls a step of operators on equal shapes, these are three
quarters of the loop, and the loop takes a tenth of the step with its backward pass. Layers and
time steps do not count, since each needs the result of the one before.

## Why it matters

Each call costs some microseconds of Python, dispatch and set-up, however small its tensors are. One
operator on the whole tensor, or one `torch._foreach_` call on the list of parameters, does it all
at once.

## Cure

Compute on whole tensors. For parameters: `clip_grad_norm_`, `torch._foreach_norm`,
`torch._foreach_lerp_`, `AveragedModel`. The gain: eight tenths of the line's time. For loops of
independent calls: `groups` of one convolution, `scaled_dot_product_attention` over all heads, the
whole batch at once, `torch.bmm`. The gain: nine tenths of the calls' time beyond the work itself,
estimated from its operations and elements. Compiling the model does not cure loops outside it.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
- https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
- https://docs.pytorch.org/docs/stable/notes/broadcasting.html
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings
from flatout.diagnosing.job.host import operator_loops, repeats
from flatout.diagnosing.job.host.repeats import RepeatCost
from flatout.diagnosing.job.host_lines import LineGroup
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile
from flatout_agent.wire import RepeatSeen

CHECK = Check(code="HOST011", severity=Severity.WARNING, since="0.2.0")
SPARED = 0.8
REPEATED = 0.9
READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
ELEMENTS = re.compile(r"aten::(select|slice|index|unbind|item|fill_|index_put_|_index_put_impl_)")
PARAMETERS = re.compile(
    r"\b(param\w*|p|w|weights?|grads?|ema\w*|shadow\w*|avg\w*|averag\w*|state_dict|named_parameters)\b"
)


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each function with such lines, and for each loop of independent calls."""
    told: set[str] = set()
    for cost in repeats.costs(profile):
        saves = host_lines.saved_ms(profile, cost.spared_ms, REPEATED)
        if repeats.worth(profile, cost, saves) and told.isdisjoint(cost.row.lines):
            told.update(cost.row.lines)
            yield _repeated(profile, cost, saves)
    looping = [line for loop in operator_loops.loops(profile) for line in loop.lines]
    for group in host_lines.by_function(profile, looping):
        operators = operator_loops.called_by(profile, group)
        saves = host_lines.saved_ms(profile, group.ms, SPARED)
        if not host_lines.worth(profile, group) or not savings.worth(profile, saves):
            continue
        if told.isdisjoint(str(line.where) for line in group.lines):
            yield _looping(profile, group, operators, saves)


def _repeated(profile: Profile, cost: RepeatCost, saves: float) -> Diagnosis:
    row = cost.row
    share = units.share(cost.ms / profile.anatomy.step_ms)
    text, commands = _batched(row, cost.operators)
    name = _first(row.operators).partition(".")[2]
    return Diagnosis(
        title=f"{name} is called {row.calls:.0f} times one by one in a Python loop, though no call "
        f"needs another: {units.milliseconds(cost.ms)}, {share} of the step",
        evidence=f"{row.where} {row.source}; {_costliest(cost.operators)}; on {_first(row.shapes)} "
        f"each; in forward and backward pass {units.milliseconds(cost.ms)}; batched, "
        f"{units.count(round(row.left), 'call')} would be left",
        cure=Cure(text, savings.lines(row.where, row.source, *commands)),
        severity=savings.severity(profile, saves),
        where=row.where,
        saves_ms=saves,
        most_ms=cost.ms,
        reason=f"{units.milliseconds(cost.spared_ms)} of it is what a call takes whatever its "
        "size: one call for all spares that, the work itself stays",
        covers=(row.where, *row.lines),
    )


def _first(words: Sequence[str]) -> str:
    return next(iter(words), "")


def _costliest(operators: Sequence[Operator]) -> str:
    spent: dict[str, float] = defaultdict(float)
    for operator in operators:
        spent[operator.name] += operator.host_ms
    most = sorted(spent, key=lambda name: -spent[name])[:3]
    return ", ".join(f"{name} {units.milliseconds(spent[name])}" for name in most)


def _batched(row: RepeatSeen, operators: Sequence[Operator]) -> tuple[str, tuple[str, ...]]:
    """The cure that fits the operators of the loop."""
    names = " ".join(row.operators)
    if not row.modelling and PARAMETERS.search(row.source):
        return _cure(row.source, operators)
    if "convolution" in _first(row.operators):
        if any(re.match(r"\d+x1x", shape) for shape in row.shapes):
            return (
                "Convolve all channels at once: a depthwise convolution, with groups.",
                ("F.conv2d(x, kernel.expand(channels, 1, -1, -1), groups=channels)",),
            )
        if row.own_weights:
            return (
                "Convolve once: the convolutions as groups of one.",
                ("F.conv2d(torch.cat(inputs, 1), torch.cat(weights), groups=len(inputs))",),
            )
    if row.modelling and re.search(r"bmm|mm|matmul", names) and re.search(r"softmax|exp", names):
        return (
            "Compute all heads at once: one projection, then fused attention on "
            "(batch, heads, length, size).",
            ("q, k, v = qkv(x).unflatten(-1, (3, heads, size)).permute(2, 0, 3, 1, 4)",
             "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
             "y = y.transpose(1, 2).flatten(2)"),
        )  # fmt: skip
    if not row.modelling:
        return (
            "Vectorise it: do it once on the whole batch, with random numbers of the batch's size; "
            "or sample by sample in the data set, where a loader's workers do it meanwhile.",
            ("# on the whole batch: torch.stack(samples), then each operator once",),
        )
    if row.own_weights:
        return (
            "Compute all at once: a batched product over stacked weights.",
            ("y = torch.bmm(torch.stack(inputs), torch.stack(weights))  # or torch.vmap",),
        )
    return (
        "Call it once for all: what the loop goes over becomes a part of the batch.",
        ("y = layers(x.flatten(0, 1)).unflatten(0, x.shape[:2])  # or torch.cat(inputs)",),
    )


def _looping(
    profile: Profile, group: LineGroup, operators: Sequence[Operator], saves: float
) -> Diagnosis:
    share = units.share(group.ms / profile.anatomy.step_ms)
    calls = sum(operator.calls for operator in operators)
    text, commands = _cure(" ".join(line.where.source for line in group.lines), operators)
    return Diagnosis(
        title=f"{_subject(operators)} one by one in a Python loop: "
        f"{units.milliseconds(group.ms)}, {share} of the step",
        evidence=f"{calls:,.0f} operators a step from here, "
        f"{_names(operators)}; {host_lines.evidence(profile, group)}",
        cure=Cure(text, savings.lines(group.where, group.where.source, *commands)),
        severity=savings.severity(profile, saves),
        where=str(group.where),
        saves_ms=saves,
        reason=f"eight tenths of {units.milliseconds(group.ms)} for {calls:,.0f} calls of "
        "small operators",
    )


def _subject(operators: Sequence[Operator]) -> str:
    if any(
        operator.name in READS and operator.calls >= operator_loops.MANY / 4
        for operator in operators
    ):
        return "values are read from tensors"
    elements = sum(operator.calls for operator in operators if ELEMENTS.match(operator.name))
    if elements >= sum(operator.calls for operator in operators) / 3:
        return "elements are accessed"
    return "small operators are called"


def _names(operators: Sequence[Operator]) -> str:
    most = sorted(operators, key=lambda operator: -operator.calls)[:3]
    return ", ".join(f"{operator.name} {operator.calls:,.0f} times" for operator in most)


def _cure(source: str, operators: Sequence[Operator]) -> tuple[str, tuple[str, ...]]:
    names = " ".join(operator.name for operator in operators)
    if PARAMETERS.search(source) and re.search(r"norm|pow|item", names):
        return (
            "Let one call work on all gradients; it reads nothing back.",
            ("torch.nn.utils.clip_grad_norm_(model.parameters(), limit)",
             "# or: torch.stack(torch._foreach_norm(grads)).norm()"),
        )  # fmt: skip
    if PARAMETERS.search(source):
        return (
            "Work on all parameters with one call each.",
            ("torch._foreach_lerp_(averages, parameters, 1 - decay)",
             "# also _foreach_mul_, _foreach_add_; averages: swa_utils.AveragedModel"),
        )  # fmt: skip
    return (
        "Vectorise it: one operator on the whole tensor, not one for each element or sample; "
        "read values back once, with .tolist(), after the loop.",
        ("# on whole tensors: index tensors, broadcasting, torch.where, sum(dim)",),
    )
