"""The data sheets of GPUs (gpus.toml): what a GPU can do at most, each entry with its source."""

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
"""Words with which makers surround a name, and which people leave out."""
MAKERS = re.compile(r"^(NVIDIA|AMD|Intel(\(R\))?) (GeForce )?")
"""What drivers put in front of the model."""
Kind = Literal["server", "workstation", "consumer", "integrated", "jetson"]
"""integrated, jetson: it shares the memory of its processor."""
SHARED = ("kind", "vendor", "architecture", "compute_capability", "gfx")
"""Facts in which the members of a family must agree."""
NUMBERS = (
    "memory_bytes",
    "bandwidth_gb_per_s",
    "pcie_generation",
    "pcie_width",
    "nvlink_gb_per_s",
    "power_w",
)
"""Facts that a data sheet may not give."""


@dataclass(frozen=True)
class GpuModel:
    """One model; None where the data sheet does not say."""

    id: str
    """h100-sxm, rtx-4090, mi300x, m3-max."""
    name: str
    """As sold: NVIDIA H100 SXM5 80GB."""
    vendor: str
    """nvidia, amd, intel or apple."""
    architecture: str
    """hopper, ada, cdna3, ..."""
    kind: Kind
    names: tuple[str, ...]
    """What drivers call it (whole names, compared without case and vendor prefix)."""
    compute_capability: tuple[int, int] | None
    gfx: str | None
    memory_bytes: int | None
    bandwidth_gb_per_s: float | None
    """10^9 bytes."""
    pcie_generation: int | None
    pcie_width: int | None
    nvlink_gb_per_s: float | None
    """Both directions together, as the data sheet says."""
    power_w: float | None
    peaks_tflop_per_s: Mapping[str, float]
    """Dense (never sparse) peak by dtype: fp64, fp64_tensor, fp32, tf32, fp16, bf16, fp8, fp4,
    int8. fp16, bf16: on tensor cores with float32 accumulation."""
    features: tuple[str, ...]
    """Of bf16, tf32, fp8, fp4, nvlink, nvlink_c2c, mig, unified_memory, tensor_cores."""
    sources: tuple[str, ...]
    checked: str
    """Day of the check, YYYY-MM-DD."""
    unverified: tuple[str, ...]
    """Numbers that were not seen in a text of the maker: bandwidth_gb_per_s, memory_gb,
    peaks_tflop_per_s.fp16, ..."""


@dataclass(frozen=True)
class ProductLine:
    """What is known of GPUs by their name alone, without a data sheet."""

    kind: Kind
    names: re.Pattern[str]
    """The beginnings of their names, without the maker's."""
    features: tuple[str, ...] = ()


@cache
def models() -> tuple[GpuModel, ...]:
    """All models, by vendor and age."""
    return tuple(_model(fields) for fields in _table()["model"])


@cache
def lines() -> tuple[ProductLine, ...]:
    """The product lines, in the order in which they are looked through."""
    return tuple(
        ProductLine(fields["kind"], re.compile(fields["names"]), tuple(fields.get("features", ())))
        for fields in _table()["line"]
    )


def known(name: str | None, memory_bytes: int | None = None) -> GpuModel | ProductLine | None:
    """The model that a driver's name means, else its product line; None: neither is known."""
    if not name:
        return None
    beginning = without_maker(name)
    return find(name, memory_bytes) or next(
        (line for line in lines() if line.names.match(beginning)), None
    )


def kind(name: str | None) -> Kind | None:
    """What sort of GPU a driver's name means; None: not known."""
    entry = known(name)
    return entry.kind if entry else None


def without_maker(name: str) -> str:
    """RTX 4090 of NVIDIA GeForce RTX 4090."""
    return MAKERS.sub("", name)


def find(name: str, memory_bytes: int | None = None) -> GpuModel | None:
    """The model that a driver's name ("NVIDIA H100 80GB HBM3") or a short one ("rtx4090") means.

    Some models have one name and differ in memory (RTX 3080): `memory_bytes` tells them apart.
    Where several are meant ("h100", or no memory given), the answer has what they share, and None
    or nothing elsewhere. None: not in the table, or those that could be meant share too little.
    """
    key = _key(name)
    if not key:
        return None
    meant = _meant(key)
    if memory_bytes is not None and len(meant) > 1:
        near = [model for model in meant if _near(model.memory_bytes, memory_bytes)]
        meant = tuple(near) or meant
    return _shared(meant)


def nearest(name: str) -> tuple[str, ...]:
    """Ids most like an unknown name, best first."""
    key = _key(name)
    if not key:
        return ()
    by_key = {_key(model.id): model.id for model in models()}
    starting = [known for known in by_key if known.startswith(key)]
    close = difflib.get_close_matches(key, by_key, n=5, cutoff=0.6)
    return tuple(by_key[known] for known in dict.fromkeys((*starting, *close)))


@cache
def _table() -> Mapping[str, Any]:
    path = resources.files("flatout.knowledge").joinpath("gpus.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _model(fields: Mapping[str, Any]) -> GpuModel:
    facts: dict[str, Any] = dict.fromkeys(("compute_capability", "gfx", *NUMBERS)) | dict(fields)
    memory, capability = facts.pop("memory_gb", None), facts["compute_capability"]
    facts["memory_bytes"] = memory * 2**30 if memory is not None else None
    facts["compute_capability"] = _capability(capability) if capability else None
    peaks = facts.pop("peaks_tflop_per_s", {})
    facts["peaks_tflop_per_s"] = MappingProxyType({key: float(peaks[key]) for key in peaks})
    for name in ("names", "features", "sources", "unverified"):
        facts[name] = tuple(facts.get(name, ()))
    return GpuModel(**facts)


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _key(name: str) -> str:
    """A name without case, maker's words and anything but letters and digits."""
    return re.sub(r"[^a-z0-9]", "", PLAIN_WORDS.sub(" ", name.lower()))


@cache
def _by_key() -> Mapping[str, tuple[GpuModel, ...]]:
    """The models by every name that they have."""
    found: dict[str, tuple[GpuModel, ...]] = {}
    for model in models():
        for key in {_key(name) for name in (model.id, model.name, *model.names)}:
            found[key] = (*found.get(key, ()), model)
    return found


def _meant(key: str) -> tuple[GpuModel, ...]:
    whole = _by_key().get(key)
    return whole or tuple(model for model in models() if _family(model, key))


def _family(model: GpuModel, key: str) -> bool:
    """The key is whole first words of the id: h100 of h100-sxm; not v100 of v100s-pcie."""
    words = model.id.split("-")
    return any(key == "".join(words[:count]) for count in range(1, len(words)))


def _near(known: int | None, seen: int) -> bool:
    return known is not None and 0.9 < seen / known < 1.05


def _shared(meant: tuple[GpuModel, ...]) -> GpuModel | None:
    """What several models have in common."""
    if len(meant) < 2:
        return meant[0] if meant else None
    first = meant[0]
    if any(getattr(model, name) != getattr(first, name) for model in meant for name in SHARED):
        return None
    peaks = {
        dtype: peak
        for dtype, peak in first.peaks_tflop_per_s.items()
        if all(model.peaks_tflop_per_s.get(dtype) == peak for model in meant)
    }
    agreed: dict[str, Any] = {
        name: getattr(first, name) if len({getattr(one, name) for one in meant}) == 1 else None
        for name in NUMBERS
    }
    agreed["features"] = tuple(
        feature for feature in first.features if all(feature in one.features for one in meant)
    )
    return dataclasses.replace(
        first,
        id=_start([model.id for model in meant]).rstrip("-"),
        name=_start([model.name for model in meant]).rstrip(),
        names=tuple(dict.fromkeys(name for model in meant for name in model.names)),
        peaks_tflop_per_s=MappingProxyType(peaks),
        sources=tuple(dict.fromkeys(source for model in meant for source in model.sources)),
        unverified=_unverified(meant, agreed, peaks),
        **agreed,
    )


def _unverified(
    meant: tuple[GpuModel, ...], agreed: Mapping[str, Any], peaks: Mapping[str, float]
) -> tuple[str, ...]:
    """Of what is left in common, all that any of them does not know for sure."""
    kept = {name for name, value in agreed.items() if value is not None} | {*SHARED}
    kept |= {f"peaks_tflop_per_s.{dtype}" for dtype in peaks}
    if agreed["memory_bytes"] is not None:
        kept.add("memory_gb")
    told = dict.fromkeys(name for model in meant for name in model.unverified)
    return tuple(name for name in told if name in kept)


def _start(texts: list[str]) -> str:
    """The longest beginning that all have."""
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in alike)
