"""Which builds are tried, and why others are not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flatout.exporting import candidates
from flatout.nouns.errors import UserError
from flatout.nouns.exported import ExportSettings

SETTINGS = ExportSettings(sys.executable, Path("artefact"))
CPU: dict[str, object] = {"cuda": False}


def tried(settings: ExportSettings) -> set[str]:
    return {p.id for p in candidates.plans(settings) if not candidates.why_not(p, settings, CPU)}


def test_by_default_whatever_rounds_but_nothing_quantised() -> None:
    assert tried(SETTINGS) == {
        "eager",
        "aoti",
        "aoti-bf16",
        "compile",
        "compile-bf16",
        "onnxruntime",
        "openvino",
        "openvino-bf16",
    }
    assert candidates.plans(SETTINGS)[0].id == "eager"


def test_exact_and_int8() -> None:
    exact = tried(replace(SETTINGS, exact=True))
    assert exact == {"eager", "aoti", "compile", "onnxruntime", "openvino"}
    allowed = tried(replace(SETTINGS, allow=("int8",)))
    assert allowed >= {"onnxruntime-int8", "openvino-int8"}


def test_only_and_skip_take_backends_and_builds() -> None:
    assert tried(replace(SETTINGS, only=("openvino",))) == {"eager", "openvino", "openvino-bf16"}
    assert tried(replace(SETTINGS, only=("openvino-bf16",))) == {"eager", "openvino-bf16"}
    assert "aoti" not in tried(replace(SETTINGS, skip=("aoti",)))
    # Eager is the measure of all others.
    assert "eager" in tried(replace(SETTINGS, skip=("eager",)))


def test_reasons() -> None:
    plans = {plan.id: plan for plan in candidates.plans(SETTINGS)}
    assert candidates.why_not(plans["tensorrt"], SETTINGS, CPU) == "it needs an NVIDIA GPU"
    assert candidates.why_not(plans["tensorrt"], SETTINGS, {"cuda": True}) == ""


@pytest.mark.parametrize("options", [{"only": ("onxruntime",)}, {"skip": ("x",)}])
def test_an_unknown_backend(options: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(UserError, match="there is no backend") as error:
        candidates.plans(replace(SETTINGS, **options))  # type: ignore[arg-type]
    assert "onnxruntime" in (error.value.next_step or "")


def test_an_unknown_word_of_allow() -> None:
    with pytest.raises(UserError, match="--allow 'int2'"):
        candidates.plans(replace(SETTINGS, allow=("int2",)))
