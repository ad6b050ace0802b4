"""Code that torch.compile compiled is left again: compiled anew, or broken into pieces.

## What it sees

- Two or more recompilations while the job was watched, with the guards that failed.
- Recompilations whose reason is a size that changed, or a compiled model that got more than four
  input shapes.
- Places where torch.compile had to end a graph and continue in Python (graph breaks), as torch
  reports them.

## Why it matters

Each recompilation takes seconds in which nothing trains. After eight of one function, torch runs it
uncompiled from then on. Compiled code is specialised for its shapes: after the second one torch
compiles a version for dynamic sizes, which is slower; with `dynamic=False` or
`mode="reduce-overhead"` it compiles again, or records another graph, for every shape.

Operators on both sides of a graph break cannot be fused, each piece is called separately with its
own guards, and CUDA graphs are recorded in pieces or not at all.

## Cure

Keep what the guard names constant: a Python number that changes each step goes in as a tensor, a
flag is set once, a list does not grow. `TORCH_LOGS=recompiles` shows each as it happens.

Shapes: pad to a few lengths (multiples of 64), drop the last odd batch (`drop_last=True`), or mark
from the start what changes: `torch._dynamo.mark_dynamic(x, 1)`, `torch.compile(model,
dynamic=True)`.

Graph breaks: move the construct out of the compiled function: `print`, `.item()`, calls into
libraries that are not traced, branches on tensor values (`torch.where`).
`torch.compile(model, fullgraph=True)` fails at the first one and says where.

## References

- https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html
- https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
- https://docs.pytorch.org/docs/stable/generated/torch.compile.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import LoopSeen

CHECK = Check(code="LOOP004", severity=Severity.WARNING, since="0.2.0")
FEWEST = 2
"""One recompilation is often the change to dynamic shapes, or to evaluation."""
MANY = 4
"""Shapes of the model's input."""
COMPILING = re.compile(r".*\(dynamo_timed\)|_compile\.compile_inner.*|compile_fx\b.*")
"""Names of torch.compile's own work in a trace."""
SHAPE = re.compile(
    r"size mismatch|stride mismatch|shape mismatch|\.size\(|\.size\(\)\[|shape\[|rank mismatch"
    r"|expected \d+, actual \d+",
    re.IGNORECASE,
)
"""Reasons that name a changed size."""
FOREIGN = re.compile(
    r"flatout_(agent|train)|site-packages|dist-packages|[/\\]torch[/\\]|/lib/python"
)
NAMED = (
    r"# ((?:[A-Za-z]:)?[^\s:]+\.py):(\d+) in ",
    r'File "([^"]+)", line (\d+)',
    r"((?:[A-Za-z]:)?[^\s:(\"']+\.py):(\d+)",
)
"""How torch names lines: after a guard, in a stack, after a function."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for shapes that change or else for recompilations, one for graph breaks."""
    watched = profile.seen
    if watched is None:
        return
    shapes = [reason for reason in watched.recompiles if SHAPE.search(reason)]
    models = profile.job.models if profile.job is not None else ()
    many = watched.input_shapes > MANY and any(model.compiled for model in models)
    if many or len(shapes) >= FEWEST:
        yield _of_shapes(profile, watched, shapes, many)
    elif len(watched.recompiles) >= FEWEST:
        yield _again(profile, watched.recompiles)
    if watched.graph_breaks:
        yield _broken(watched.graph_breaks)


def _of_shapes(
    profile: Profile, watched: LoopSeen, reasons: Sequence[str], many: bool
) -> Diagnosis:
    counted = [f"{watched.input_shapes} shapes of the model's first input"] if many else []
    return _compiled_anew(
        profile,
        "compiled code gets inputs whose shapes keep changing",
        "; ".join([*counted, *([_evidence(reasons)] if reasons else [])]),
        Cure(
            "Pad to a few shapes, or mark from the start which dimension changes.",
            savings.lines(
                None, "model = torch.compile(model)", "model = torch.compile(model, dynamic=True)"
            ),
        ),
        watched.model_where or _line(reasons),
    )


def _again(profile: Profile, reasons: Sequence[str]) -> Diagnosis:
    return _compiled_anew(
        profile,
        f"torch.compile compiled again {len(reasons)} times",
        _evidence(reasons),
        Cure(
            "Keep constant what the failed guard names; a number that changes goes in as a tensor.",
            (
                "# which guard fails, as it happens:",
                " ".join(("TORCH_LOGS=recompiles", *(profile.command or ("python", "train.py")))),
            ),
        ),
        _line(reasons),
    )


def _compiled_anew(
    profile: Profile, title: str, evidence: str, cure: Cure, where: str | None
) -> Diagnosis:
    """The finding, with the time that compiling takes, as far as recorded."""
    took = sum(
        operator.host_ms for operator in profile.operators if COMPILING.fullmatch(operator.name)
    )
    reason = f"compiling takes {units.milliseconds(took)} of the recorded steps each"
    saving = device_time.of_step(profile, took, reason)
    return Diagnosis(
        title=title,
        evidence=evidence,
        cure=cure,
        where=where,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _broken(reasons: Sequence[str]) -> Diagnosis:
    return Diagnosis(
        title=f"torch.compile broke the graph: {units.count(len(reasons), 'reason')}",
        evidence=_evidence(reasons),
        cure=Cure(
            "Move what it names out of the compiled function; fullgraph=True shows where.",
            savings.lines(
                None, "model = torch.compile(model)", "model = torch.compile(model, fullgraph=True)"
            ),
        ),
        where=_line(reasons),
    )


def _evidence(reasons: Sequence[str], most: int = 3, width: int = 240) -> str:
    """The first distinct reasons, shortened."""
    distinct = list(dict.fromkeys(reasons))
    parts = [text if len(text) <= width else f"{text[: width - 3]}..." for text in distinct[:most]]
    if len(distinct) > most:
        parts.append(f"and {len(distinct) - most} more")
    return "; ".join(parts)


def _line(reasons: Sequence[str]) -> str | None:
    """The user's line that the first reason with one names."""
    return next((line for text in reasons if (line := _line_in(text))), None)


def _line_in(text: str) -> str | None:
    """The user's line that torch names in a message, as file:line, or None if it names none."""
    for pattern in NAMED:
        places = [place for place in re.findall(pattern, text) if not FOREIGN.search(place[0])]
        if places:
            file, line = places[-1]
            return f"{file}:{line}"
    return None
