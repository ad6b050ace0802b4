"""All figures that leave a monitor, as `figures.toml` names them; unknown ones are left out."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flatout.nouns.alert import Alert
from flatout.nouns.job_sample import JobSample, RankSample
from flatout.nouns.machine_sample import DiskSample, GpuSample, MachineSample

Kind = Literal["gauge", "counter"]
"""A counter never falls."""
Labels = tuple[tuple[str, str], ...]
Noun = MachineSample | DiskSample | GpuSample | JobSample | RankSample | Alert

TABLE = Path(__file__).with_name("figures.toml")
NOUNS = (MachineSample, DiskSample, GpuSample, JobSample, RankSample, Alert)
COUNTERS = frozenset({"hw.errors", "flatout.train.step.count", "flatout.train.rank.step.count"})
UNITS = {
    "1": "ratio",
    "s": "seconds",
    "By": "bytes",
    "W": "watts",
    "Cel": "celsius",
    "Hz": "hertz",
    "By/s": "bytes_per_second",
    "{sample}/s": "per_second",
}
"""UCUM units in the words of Prometheus; one in braces has none."""
HOST = "host.name"
JOB = "flatout.job"
"""A job's label, since Prometheus keeps `job` for itself."""
GPU = "flatout.gpu"
LOSS = "loss"
AFTER_THE_END = frozenset(
    {"state", "program", "exit_code", "step", "steps_expected", LOSS, "began_s"}
)
"""Figures that still hold for a job that has ended."""


@dataclass(frozen=True)
class FigurePart:
    """One field of a noun that a figure reads."""

    field: str
    labels: Labels = ()
    scale: float = 1.0
    each: str | None = None
    """The label that tells words or numbers apart, if the field holds several to be counted."""
    prefix: str = ""
    """Prefix of that label's values."""


@dataclass(frozen=True)
class Figure:
    """One figure of all nouns of a kind."""

    name: str
    unit: str
    kind: Kind
    help: str
    noun: type[Noun]
    parts: tuple[FigurePart, ...]

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus, by OpenTelemetry's rules; a counter ends in `_total`."""
        name, unit = re.sub(r"[^a-zA-Z0-9]+", "_", self.name), UNITS.get(self.unit, "")
        if unit and not name.endswith(f"_{unit}"):
            name = f"{name}_{unit}"
        return f"{name}_total" if self.kind == "counter" else name


def _read() -> Iterator[Figure]:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    for noun in NOUNS:
        for name, (unit, help_text, *fields) in table[noun.__name__].items():
            kind: Kind = "counter" if name in COUNTERS else "gauge"
            yield Figure(name, unit, kind, help_text, noun, tuple(map(_part, fields)))


def _part(field: str | dict[str, Any]) -> FigurePart:
    if isinstance(field, str):
        return FigurePart(field)
    return FigurePart(**{**field, "labels": tuple(field.get("labels", {}).items())})


FIGURES = tuple(_read())
