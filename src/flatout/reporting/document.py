"""JSON: the documents that other programs read. A field once published keeps its name and meaning.

`baseline`, `best` and `speedup` of `flatout.tune/1` come from the A/B runs if there were any.
Unknown numbers, NaN and Inf are null.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from flatout.nouns.diagnosed import Diagnosed
from flatout.nouns.ejected import Ejected
from flatout.nouns.explained import Explained, Match
from flatout.nouns.page import Page
from flatout.nouns.run_end import RunEnd
from flatout.nouns.trial import Measurement, Trial
from flatout.nouns.tuned import Tuned
from flatout.reporting import outcome

TUNE = "flatout.tune/1"
RUN = "flatout.run/1"
DOCTOR = "flatout.doctor/1"
EXPLAIN = "flatout.explain/1"
EJECT = "flatout.eject/1"


def tune_document(tuned: Tuned) -> dict[str, Any]:
    """What `flatout tune --json` prints."""
    head = outcome.headline(tuned)
    plan = outcome.plan_measured(tuned)
    guard = outcome.guard_of_plan(tuned)
    faster = head.answer is not outcome.TuneOutcome.NOTHING
    return as_object(
        {
            "schema": TUNE,
            "answer": head.answer,
            "command": tuned.command,
            "baseline": _side(head.untouched, tuned.baseline),
            "best": _side(head.plan, plan) if faster else None,
            "speedup": head.speedup,
            "speedup_interval": head.interval,
            "boosts": tuned.plan.boosts if tuned.plan else (),
            "trials": [_trial(trial) for trial in tuned.trials],
            "guard": guard,
            "learning": outcome.learning(guard),
            "confirmation": tuned.confirmation,
            "plan": tuned.plan_path,
            "report": tuned.report_path,
            "run_folder": tuned.run_folder,
            "pays_after_steps": tuned.plan.pays_after_steps if tuned.plan else None,
            "compile_s": tuned.plan.compile_s if tuned.plan else None,
            "machine": tuned.machine,
            "noise": tuned.noise,
            "deterministic": tuned.deterministic,
            "wall_s": tuned.wall_s,
            "interrupted": tuned.interrupted,
            "redirected": tuned.redirected,
            "leaked": tuned.leaked,
            "faults": tuned.faults,
            "notes": tuned.notes,
            "tried": tuned.tried,
        }
    )


def run_document(
    end: RunEnd,
    command: Sequence[str],
    exit_code: int,
    crash: Explained | None = None,
    tuned: Tuned | None = None,
) -> dict[str, Any]:
    """What `flatout run --json` prints when the program has ended.

    crash: why it crashed; tuned: the result of `--live`.
    """
    matches = [_match(match) for match in crash.matches] if crash is not None else []
    head = {"schema": RUN, "command": command, "exit_code": exit_code, "matches": matches}
    head["observations"] = [said.en for said in crash.observations] if crash is not None else []
    head["live"] = _live(tuned) if tuned is not None else None
    return as_object({**head, **_fields(end)})


def _live(tuned: Tuned) -> dict[str, Any]:
    return {
        "speedup": tuned.plan.speedup if tuned.plan else None,
        "boosts": tuned.plan.boosts if tuned.plan else (),
        "baseline_step_ms": tuned.baseline.step_ms,
        "step_ms": tuned.best.step_ms if tuned.best else None,
        "saved_s": tuned.saved_s,
        "lost_s": tuned.lost_s,
        "lost_late_s": tuned.lost_late_s,
        "noise": tuned.noise,
        "trials": [_trial(trial) for trial in tuned.trials],
        "guard": tuned.live_guard,
        "plan": tuned.plan_path,
        "report": tuned.report_path,
        "notes": tuned.notes,
    }


def doctor_document(diagnosed: Diagnosed) -> dict[str, Any]:
    """What `flatout doctor --json` prints and `flatout doctor --machine` reads."""
    return as_object(
        {
            "schema": DOCTOR,
            "verdict": diagnosed.health,
            "findings": diagnosed.findings,
            "machine": diagnosed.machine,
            "selftests": diagnosed.selftests,
            "checks": diagnosed.checks,
            "wall_s": diagnosed.wall_s,
        }
    )


def explain_document(
    explained: Explained, page: Page | dict[str, str] | None = None
) -> dict[str, Any]:
    """What `flatout explain --json` prints: ids, figures, and texts in English.

    page: the page of a code or a name, if one was asked for.
    """
    return as_object(
        {
            "schema": EXPLAIN,
            "recognised": explained.recognised or page is not None,
            "matches": [_match(match) for match in explained.matches],
            "observations": [said.en for said in explained.observations],
            "better_log": [
                {"id": advice.id, "text": advice.text.en, "commands": advice.commands}
                for advice in explained.better_log
            ],
            "page": page,
            "sources": explained.sources,
            "bytes_read": explained.bytes_read,
        }
    )


def eject_document(ejected: Ejected) -> dict[str, Any]:
    """What `flatout eject --json` prints: each boost with its lines, in script order."""
    return as_object({"schema": EJECT, **_fields(ejected)})


def _match(match: Match) -> dict[str, Any]:
    evidence = match.evidence
    return {
        "id": match.id,
        "family": match.signature.family,
        "role": match.signature.role,
        "title": match.title.en,
        "confidence": match.confidence,
        "cause": match.cause.en,
        "evidence": evidence.text,
        "where": f"{evidence.source}:{evidence.line}"
        if evidence.source
        else f"line {evidence.line}",
        "rank": evidence.rank,
        "ranks": match.ranks,
        "count": match.count,
        "captured": match.captured,
        "consequence_of": match.consequence_of,
        "cure": [
            {"text": step.text.en, "commands": step.commands, "applies": step.applies}
            for step in match.cure
        ],
    }


def as_object(fields: dict[str, Any]) -> dict[str, Any]:
    """The same fields in JSON's types."""
    return {name: as_json(value) for name, value in fields.items()}


def as_json(value: Any) -> Any:
    """`value` in JSON's types: nouns as objects, tuples as lists, NaN and Inf as null."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)  # the text of a StrEnum
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_json(_fields(value))
    if isinstance(value, dict):
        return {str(key): as_json(element) for key, element in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(element) for element in value]
    return str(value)


def _fields(noun: Any) -> dict[str, Any]:
    return {field.name: getattr(noun, field.name) for field in dataclasses.fields(noun)}


def _side(side: outcome.OutcomeSide, measured: Measurement | None) -> dict[str, Any]:
    figures = _fields(measured) if measured else {}
    return {**figures, "step_ms": side.step_ms, "samples_per_s": side.samples_per_s}


def _trial(trial: Trial) -> dict[str, Any]:
    step_ms = trial.measured.step_ms if trial.measured else None
    return {**_fields(trial), "step_ms": step_ms}
