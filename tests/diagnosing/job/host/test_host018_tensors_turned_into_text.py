from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.host_time import HostKind, HostLine
from flatout.nouns.place import Place

CHECK = "tensors-turned-into-text"
STEP_MS = made.cpu_profile().anatomy.step_ms


def text(source: str, share: float = 0.5, **fields: Any) -> HostLine:
    """A line of the model's below which torch formats tensors."""
    fields.setdefault("formats", True)
    line = sampled.line(51, HostKind.TORCH, share * STEP_MS, modelling=True, **fields)
    return dataclasses.replace(line, where=Place("model.py", 51, "forward", source))


@pytest.mark.parametrize(
    ("source", "cure"),
    [
        ('log.debug(f"{self.label}: in {x} out {out}")', "ask for the level first"),
        ('self.logger.info("out %s", out)', "ask for the level first"),
        ("print(out)", "Print every 50 steps"),
        ("self.history = str(out)", "shape, dtype or mean"),
    ],
)
def test_the_line_and_its_cure(source: str, cure: str) -> None:
    profile = sampled.profile(text(source))
    finding = made.only(CHECK, profile)
    assert (finding.code, finding.where, finding.boost) == ("HOST018", "model.py:51", None)
    assert "tensors are turned into text" in finding.title and "50%" in finding.title
    assert cure in finding.cure.text
    assert made.saved_ms(finding, profile) == pytest.approx(0.45 * STEP_MS, rel=0.01)


@pytest.mark.parametrize(
    "line",
    [
        text("print(loss)", 0.02),
        text("h = self.layers(x)", formats=False),
        text("self.log('loss', loss)", framework="lightning"),
        text("print(x)", loading=True),
    ],
    ids=["little", "no text", "for what runs the loop", "the loader's"],
)
def test_nothing_is_said(line: HostLine) -> None:
    assert made.findings(CHECK, sampled.profile(line)) == ()


def test_a_line_that_mostly_computes_is_no_text() -> None:
    line = text("print(model(x))", 0.1)
    computing = dataclasses.replace(line, ms=0.5 * STEP_MS, formats=False)
    assert made.findings(CHECK, sampled.profile(line, computing)) == ()
