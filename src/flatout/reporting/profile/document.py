"""JSON of a profile, `flatout.profile/1`: what `flatout profile --json` prints and reads again.

A field once published keeps its name and meaning; unknown values are null. The JSON holds the whole
profile, so that reports and comparisons can be made later and elsewhere.
"""

from __future__ import annotations

import dataclasses
import reprlib
from pathlib import Path
from typing import Any

from flatout.nouns import decoding, documents
from flatout.nouns.errors import UserError
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Profiled
from flatout.reporting.document import as_object
from flatout.reporting.profile import words

PROFILE = "flatout.profile/1"
HOW = "record one: flatout profile --json train.py > profile.json"


def document(profiled: Profiled) -> dict[str, Any]:
    """What `flatout profile --json` prints."""
    profile, anatomy = profiled.profile, profiled.profile.anatomy
    parts = []
    for part in anatomy.parts:
        share = part.ms / anatomy.step_ms if anatomy.step_ms else 0.0
        rest = _fields(part, without=("kind", "ms"))
        parts.append({"part": part.kind, "ms": part.ms, "share": share, **rest})
    findings = []
    for finding in profiled.findings:
        raw = _fields(finding)
        if (gain := finding.gain) is not None:
            raw["gain"] = {"predicted": gain.ratio, **_fields(gain, without=("ratio",))}
        findings.append(raw)
    host = None
    if profile.host is not None:
        # The time in the sampled steps. Multiply by `scale` to get an undisturbed step.
        totals = {str(kind): profile.host.total_ms(kind) for kind in HostKind}
        totals["loading"] = profile.host.total_ms(*HostKind, loading=True)
        totals["garbage-collection"] = profile.host.gc_ms
        scale = profile.host.scale(anatomy.step_ms)
        host = {**_fields(profile.host), "totals": totals, "scale": scale}
    return as_object(
        {
            "schema": PROFILE,
            "step_ms": anatomy.step_ms,
            "anatomy": parts,
            "findings": findings,
            "step": _fields(anatomy, without=("step_ms", "parts")),
            **_fields(profile, without=("anatomy", "host")),
            "host": host,
            **_fields(profiled, without=("profile", "findings", "report_path")),
            "largest_gain": max(map(words.saved, profiled.findings), default=0.0),
            "report": profiled.report_path,
        }
    )


def read(raw_document: dict[str, Any]) -> Profiled:
    """The profile in such a document. Raises UserError if it holds none."""
    if not isinstance(raw_document, dict) or raw_document.get("schema") != PROFILE:
        schema = raw_document.get("schema") if isinstance(raw_document, dict) else None
        raise UserError(f"this is of schema {schema!r}; this flatout reads {PROFILE!r}", HOW)
    try:
        parts = [{**raw, "kind": raw["part"]} for raw in raw_document["anatomy"]]
        anatomy = {**raw_document["step"], "step_ms": raw_document["step_ms"], "parts": parts}
        findings = []
        for raw in raw_document["findings"]:
            gain = raw.get("gain")
            findings.append({**raw, "gain": {**gain, "ratio": gain["predicted"]}} if gain else raw)
        fields = {**raw_document, "anatomy": anatomy, "findings": findings}
        fields["report_path"] = raw_document.get("report")
        raw = {**fields, "profile": fields}
        profiled = decoding.decode(Profiled, raw, _refused, null_is_nan=True)
        assert profiled is not None  # an invalid document raises
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"the profile cannot be read: {error}", HOW) from error
    return profiled


def load(path: Path) -> Profiled:
    """The profile in the file. Raises UserError that names the file if it holds none."""
    raw_document = documents.load(path, HOW)
    try:
        return read(raw_document)
    except UserError as error:
        raise UserError(f"{path}: {error.message}", error.next_step) from error


def _fields(noun: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(noun))
    return {name: getattr(noun, name) for name in names if name not in without}


def _refused(place: str, value: Any) -> None:
    problem = "is missing" if value is decoding.MISSING else f"is {reprlib.repr(value)}"
    raise ValueError(f"{place} {problem}")
