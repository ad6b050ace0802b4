"""A large part of the time goes into evaluation in the middle of an epoch.

## What it sees

Evaluation between the steps of an epoch, not at its end, and a quarter of the time or more spent in
it; a tenth if it recurs after 20 steps or fewer. Its time is spread over the steps from one to the
next. Text that the model generates in a callback for inspection is also evaluation. Calls of a
model that is not trained, a teacher or a target network, do not count.

## Why it matters

Evaluating every few steps shows little more than every few hundred, and training waits meanwhile.

## Cure

Evaluate or generate every few hundred steps or once an epoch, or on a part of the data.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://github.com/google-research/tuning_playbook#evaluating-model-performance
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.place import Place
from flatout.nouns.profile import Profile
from flatout_agent.wire import LoopSeen

CHECK = Check(code="LOOP007", severity=Severity.WARNING, since="0.2.0")
SHARE = 0.25
"""Share of all time."""
OFTEN_SHARE = 0.10
"""Share of all time if it recurs often."""
OFTEN = 20
"""The most steps between two evaluations that hardly show anything new."""
ENOUGH = 0.05
"""Share of the steps' time that evaluation may take."""
GENERATES = re.compile(r"\b(generate|beam_search|sample_sequence)\w*\(")
"""Calls that make the model generate something."""
TEXTS = ("transformers", "vllm", "ctranslate2")
"""Packages whose models generate text."""
MAIN = ("<module>", "main")
LONGEST = 36
"""Characters of a function that the title names."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loop."""
    watched = profile.seen
    if watched is None or watched.eval_s <= 0 or not watched.eval_trained:
        return
    if watched.epochs > 1 or watched.eval_after_epoch:
        return
    step, took = profile.anatomy.step_ms, watched.eval_s * 1000
    often = watched.eval_every is not None and watched.eval_every <= OFTEN
    if step <= 0 or took < (OFTEN_SHARE if often else SHARE) * (step + took):
        return
    saved = savings.beside(profile, took - ENOUGH * step)
    where = watched.eval_called or watched.eval_where
    place = _place(profile, watched.eval_where)
    yield Diagnosis(
        title=f"{_what(profile, place)}{_after(watched)} takes "
        f"{units.share(took / (step + took))} of the time",
        evidence=f"{units.milliseconds(took)} for each step of {units.milliseconds(step)}, in the "
        f"middle of an epoch{_model_called(watched, where, place)}",
        cure=_cure(profile, where, place),
        where=where,
        saves_ms=saved,
        reason=f"evaluation takes {units.milliseconds(took)} for each step beside it; at "
        f"{units.share(ENOUGH)} of the step {units.milliseconds(ENOUGH * step)}",
    )


def _place(profile: Profile, where: str | None) -> Place | None:
    """The place with its function and text, if stacks or operators show them."""
    lines = profile.host.lines if profile.host is not None else ()
    sampled = (place for line in lines for place in (line.where, *line.chain))
    recorded = (operator.where for operator in profile.operators if operator.where is not None)
    places = (place for place in (*sampled, *recorded) if str(place) == where)
    return next(places, None)


def _what(profile: Profile, place: Place | None) -> str:
    """Like "generating text in Teller.on_step_end()"."""
    if place is None:
        return "evaluation"
    what = "generating" if GENERATES.search(place.source) else "evaluation"
    lines = profile.host.lines if profile.host is not None else ()
    packages = {line.package for line in lines if str(line.where) == str(place)}
    if what == "generating" and not packages.isdisjoint(TEXTS):
        what = "generating text"
    function = host_lines.function(place)
    named = function and function not in MAIN and len(function) <= LONGEST
    return f"{what} in {function}()" if named else what


def _cure(profile: Profile, where: str | None, place: Place | None) -> Cure:
    if place is not None and GENERATES.search(place.source):
        return Cure(
            "Generate less often: every few hundred steps or once an epoch, and fewer tokens.",
            savings.lines(place, place.source, "if step % 500 == 0:", f"    {place.source}"),
        )
    called = _place(profile, where)
    text = called.source if called is not None and called.source else "evaluate(model)"
    return Cure(
        "Evaluate less often: every few hundred steps or once an epoch.",
        savings.lines(where, text, "if step % 500 == 0:", f"    {text}"),
    )


def _after(watched: LoopSeen) -> str:
    if watched.eval_every is None:
        return ""
    every = round(watched.eval_every)
    return f" after every {units.count(every, 'step')}" if every > 1 else " after every step"


def _model_called(watched: LoopSeen, where: str | None, place: Place | None) -> str:
    """The line that calls the model, with its text if known."""
    if watched.eval_where is None or (place is None and watched.eval_where == where):
        return ""
    text = f" {place.source}" if place is not None and place.source else ""
    return f"; the model is called at {watched.eval_where}{text}"
