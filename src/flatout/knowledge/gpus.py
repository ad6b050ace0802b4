"""The data sheets of GPUs (gpus.toml): peak figures, each entry with its source."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

PLAIN_WORDS = re.compile(
    r"\((r|tm|c)\)|\b(nvidia|amd|intel|apple|geforce|tesla|instinct|radeon|graphics|generation)\b"
)
"""Words that vendors add to a name and users omit."""
MAKERS = re.compile(r"^(NVIDIA|AMD|Intel(\(R\))?) (GeForce )?")
"""Prefixes that drivers put before the model."""
Kind = Literal["server", "workstation", "consumer", "integrated", "jetson"]
"""integrated and jetson share the processor's memory."""
SHARED = ("kind", "vendor", "architecture", "compute_capability", "gfx")
"""Facts on which the members of a family must agree."""
NUMBERS = (
    "memory_bytes",
    "bandwidth_gb_per_s",
    "pcie_generation",
    "pcie_width",
    "nvlink_gb_per_s",
    "power_w",
)
"""Facts that a data sheet may omit."""


@dataclass(frozen=True)
class GpuModel:
    """One model; a field is None if the data sheet does not state it."""

    id: str
    """h100-sxm, rtx-4090, mi300x, m3-max."""
    name: str
    """Product name: NVIDIA H100 SXM5 80GB."""
    vendor: str
    """nvidia, amd, intel or apple."""
    architecture: str
    """hopper, ada, cdna3, ..."""
    kind: Kind
    names: tuple[str, ...]
    """Its names in drivers (whole names, compared without case and vendor prefix)."""
    compute_capability: tuple[int, int] | None
    gfx: str | None
    memory_bytes: int | None
    bandwidth_gb_per_s: float | None
    """Memory bandwidth in 10^9 bytes per second."""
    pcie_generation: int | None
    pcie_width: int | None
    nvlink_gb_per_s: float | None
    """Both directions together, as in the data sheet."""
    power_w: float | None
    peaks_tflop_per_s: Mapping[str, float]
    """Dense (never sparse) peak by dtype: fp64, fp64_tensor, fp32, tf32, fp16, bf16, fp8, fp4,
    int8. fp16 and bf16 are on tensor cores with float32 accumulation."""
    features: tuple[str, ...]
    """Some of bf16, tf32, fp8, fp4, nvlink, nvlink_c2c, mig, unified_memory, tensor_cores."""
    sources: tuple[str, ...]
    checked: str
    """Day of the check, YYYY-MM-DD."""
    unverified: tuple[str, ...]
    """Figures not confirmed by the vendor's own text: bandwidth_gb_per_s, memory_gb,
    peaks_tflop_per_s.fp16, ..."""


@dataclass(frozen=True)
class ProductLine:
    """What is known about GPUs from their name alone, without a data sheet."""

    kind: Kind
    names: re.Pattern[str]
    """The beginnings of their names, without the vendor."""
    features: tuple[str, ...] = ()


@cache
def models() -> tuple[GpuModel, ...]:
    """All models, by vendor and age."""
    found = []
    for fields in _table()["model"]:
        facts: dict[str, Any] = dict.fromkeys(("compute_capability", "gfx", *NUMBERS)) | fields
        memory, capability = facts.pop("memory_gb", None), facts["compute_capability"]
        facts["memory_bytes"] = memory * 2**30 if memory is not None else None
        if capability:
            major, _, minor = capability.partition(".")
            facts["compute_capability"] = int(major), int(minor)
        peaks = facts.pop("peaks_tflop_per_s", {})
        facts["peaks_tflop_per_s"] = MappingProxyType({key: float(peaks[key]) for key in peaks})
        for name in ("names", "features", "sources", "unverified"):
            facts[name] = tuple(facts.get(name, ()))
        found.append(GpuModel(**facts))
    return tuple(found)


@cache
def lines() -> tuple[ProductLine, ...]:
    """The product lines, in the order in which they are searched."""
    return tuple(
        ProductLine(fields["kind"], re.compile(fields["names"]), tuple(fields.get("features", ())))
        for fields in _table()["line"]
    )


def product(name: str | None, memory_bytes: int | None = None) -> GpuModel | ProductLine | None:
    """The model that a driver's name identifies, else its product line, or None if unknown."""
    if not name:
        return None
    beginning = without_maker(name)
    return find(name, memory_bytes) or next(
        (line for line in lines() if line.names.match(beginning)), None
    )


def kind(name: str | None) -> Kind | None:
    """The kind of GPU that a driver's name identifies, or None if unknown."""
    entry = product(name)
    return entry.kind if entry else None


def without_maker(name: str) -> str:
    """`RTX 4090` for NVIDIA GeForce RTX 4090."""
    return MAKERS.sub("", name)


def find(name: str, memory_bytes: int | None = None) -> GpuModel | None:
    """The model of a driver's name ("NVIDIA H100 80GB HBM3") or a short one ("rtx4090").

    Some models share a name and differ in memory (RTX 3080): `memory_bytes` distinguishes them.
    If several match ("h100", or no memory given), the answer has what they share, and None or empty
    elsewhere. None if not in the table, or if the matches share too little.
    """
    key = _key(name)
    if not key:
        return None
    candidates = _candidates(key)
    if memory_bytes is not None and len(candidates) > 1:
        similar = (
            model
            for model in candidates
            if model.memory_bytes is not None and 0.9 < memory_bytes / model.memory_bytes < 1.05
        )
        candidates = tuple(similar) or candidates
    return _shared(candidates)


def nearest(name: str) -> tuple[str, ...]:
    """Ids most like an unknown name, best first."""
    key = _key(name)
    if not key:
        return ()
    by_key = {_key(model.id): model.id for model in models()}
    prefixed = [id_key for id_key in by_key if id_key.startswith(key)]
    close = difflib.get_close_matches(key, by_key, n=5, cutoff=0.6)
    return tuple(by_key[id_key] for id_key in dict.fromkeys((*prefixed, *close)))


@cache
def _table() -> Mapping[str, Any]:
    path = resources.files("flatout.knowledge").joinpath("gpus.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _key(name: str) -> str:
    """A name in lower case, without vendors' words and anything but letters and digits."""
    return re.sub(r"[^a-z0-9]", "", PLAIN_WORDS.sub(" ", name.lower()))


@cache
def _by_key() -> Mapping[str, tuple[GpuModel, ...]]:
    """The models by each of their names."""
    models_by_key: dict[str, tuple[GpuModel, ...]] = {}
    for model in models():
        for key in {_key(name) for name in (model.id, model.name, *model.names)}:
            models_by_key[key] = (*models_by_key.get(key, ()), model)
    return models_by_key


def _candidates(key: str) -> tuple[GpuModel, ...]:
    if exact := _by_key().get(key):
        return exact
    # The id's first whole words are a family: h100 in h100-sxm; not v100 in v100s-pcie.
    family = []
    for model in models():
        words = model.id.split("-")
        if any(key == "".join(words[:count]) for count in range(1, len(words))):
            family.append(model)
    return tuple(family)


def _shared(candidates: tuple[GpuModel, ...]) -> GpuModel | None:
    """The facts that all candidates share, as one model."""
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    first = candidates[0]
    if any(getattr(model, name) != getattr(first, name) for model in candidates for name in SHARED):
        return None
    peaks = {
        dtype: peak
        for dtype, peak in first.peaks_tflop_per_s.items()
        if all(model.peaks_tflop_per_s.get(dtype) == peak for model in candidates)
    }
    common: dict[str, Any] = {
        name: getattr(first, name)
        if len({getattr(model, name) for model in candidates}) == 1
        else None
        for name in NUMBERS
    }
    common["features"] = tuple(
        feature
        for feature in first.features
        if all(feature in model.features for model in candidates)
    )
    known = {name for name, value in common.items() if value is not None} | {*SHARED}
    known |= {f"peaks_tflop_per_s.{dtype}" for dtype in peaks}
    if common["memory_bytes"] is not None:
        known.add("memory_gb")
    unverified = dict.fromkeys(name for model in candidates for name in model.unverified)
    return dataclasses.replace(
        first,
        id=_common_prefix([model.id for model in candidates]).rstrip("-"),
        name=_common_prefix([model.name for model in candidates]).rstrip(),
        names=tuple(dict.fromkeys(name for model in candidates for name in model.names)),
        peaks_tflop_per_s=MappingProxyType(peaks),
        sources=tuple(dict.fromkeys(source for model in candidates for source in model.sources)),
        unverified=tuple(name for name in unverified if name in known),
        **common,
    )


def _common_prefix(texts: list[str]) -> str:
    """The longest common prefix."""
    letters_in_common = itertools.takewhile(
        lambda letters: len(set(letters)) == 1, zip(*texts, strict=False)
    )
    return "".join(letters[0] for letters in letters_in_common)
