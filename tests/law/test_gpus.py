"""gpus.toml: every entry whole, with sources, in order, and physically possible."""

from __future__ import annotations

import datetime
import itertools
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from every import for_every
from flatout.knowledge import gpus
from flatout.knowledge.gpus import GpuModel

MODELS = gpus.models()
IDS = [model.id for model in MODELS]
VENDORS = ["nvidia", "amd", "intel", "apple"]
DTYPES = {"fp64", "fp64_tensor", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"}
FEATURES = {"bf16", "tf32", "fp8", "fp4", "nvlink", "nvlink_c2c", "mig", "unified_memory"}
FEATURES |= {"tensor_cores"}
FIELDS = {
    *("id", "name", "vendor", "architecture", "kind", "names", "compute_capability", "gfx"),
    *("memory_gb", "bandwidth_gb_per_s", "pcie_generation", "pcie_width", "nvlink_gb_per_s"),
    *("power_w", "unverified"),
    *("peaks_tflop_per_s", "features", "sources", "checked"),
}
NEEDED = {"id", "name", "vendor", "architecture", "kind", "names", "features", "sources"}
NEEDED |= {"checked"}
NOT_NUMBERS = NEEDED | {"peaks_tflop_per_s", "unverified"}
"""What cannot be told to be unverified: no number (a peak is named with its dtype)."""
AGE = {
    "nvidia": ["pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"],
    "amd": ["cdna2", "cdna3", "cdna4", "rdna3", "rdna4"],
    "intel": ["alchemist", "ponte-vecchio", "battlemage"],
    "apple": ["m1", "m2", "m3", "m4"],
}
CAPABILITIES = {
    "pascal": {(6, 0), (6, 1)},
    "volta": {(7, 0), (7, 2)},
    "turing": {(7, 5)},
    "ampere": {(8, 0), (8, 6), (8, 7)},
    "ada": {(8, 9)},
    "hopper": {(9, 0)},
    "blackwell": {(10, 0), (10, 3), (11, 0), (12, 0), (12, 1)},
}
OFFICIAL = re.compile(r"https://([a-z0-9-]+\.)*(nvidia|amd|intel|apple|awsstatic)\.com/\S+")

each = for_every(MODELS, lambda model: model.id)


def test_fields_are_known_and_needed_ones_there() -> None:
    path = Path(gpus.__file__).with_name("gpus.toml")
    for fields in tomllib.loads(path.read_text(encoding="utf-8"))["model"]:
        assert set(fields) <= FIELDS, fields["id"]
        assert set(fields) >= NEEDED, fields["id"]


def test_ids_are_unique_and_ordered_by_vendor_and_age() -> None:
    assert [name for name, count in Counter(IDS).items() if count > 1] == []
    places = [
        (VENDORS.index(model.vendor), AGE[model.vendor].index(model.architecture))
        for model in MODELS
    ]
    assert places == sorted(places)


def test_no_common_gpu_is_left_out() -> None:
    wanted = ["v100", "t4", "a10", "a100", "a30", "a40", "rtx-a6000", "l4", "l40", "l40s", "h100"]
    wanted += ["h200", "gh200", "b200", "gb200", "b300", "gb300", "gtx-1060", "gtx-1070"]
    wanted += ["gtx-1080", "gtx-1080-ti", "gtx-1650", "gtx-1660-ti", "titan-rtx", "titan-v"]
    wanted += [f"rtx-20{n}" for n in (60, 70, 80)] + [f"rtx-30{n}" for n in (60, 70, 80, 90)]
    wanted += [f"rtx-40{n}" for n in (60, 70, 80, 90)] + [f"rtx-50{n}" for n in (60, 70, 80, 90)]
    wanted += [f"rtx-40{n}-laptop" for n in (60, 70, 80, 90)]
    wanted += ["rtx-6000-ada", "rtx-pro-6000", "jetson-xavier", "jetson-orin", "jetson-thor"]
    wanted += ["mi210", "mi250x", "mi300x", "mi325x", "mi355x", "rx-7900-xtx", "rx-9070-xt"]
    wanted += ["max-1550", "arc-a770", "arc-b580", "m1", "m2-pro", "m3-max", "m4"]
    assert [name for name in wanted if gpus.find(name) is None] == []


@each
def test_every_name_finds_exactly_its_own_model(model: GpuModel) -> None:
    for name in (*model.names, model.name):
        assert gpus.find(name, model.memory_bytes) == model, name
    assert model.names


@each
def test_sources_are_official_and_dated(model: GpuModel) -> None:
    assert model.sources
    assert [source for source in model.sources if not OFFICIAL.fullmatch(source)] == []
    datetime.date.fromisoformat(model.checked)


def test_what_is_unverified_is_there_and_told_once() -> None:
    path = Path(gpus.__file__).with_name("gpus.toml")
    for fields in tomllib.loads(path.read_text(encoding="utf-8"))["model"]:
        peaks = {f"peaks_tflop_per_s.{dtype}" for dtype in fields.get("peaks_tflop_per_s", {})}
        doubtful = fields.get("unverified", [])
        assert set(doubtful) <= (set(fields) - NOT_NUMBERS) | peaks, fields["id"]
        assert len(doubtful) == len(set(doubtful)), fields["id"]


@each
def test_words_are_known(model: GpuModel) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", model.id)
    assert set(model.peaks_tflop_per_s) <= DTYPES
    assert set(model.features) <= FEATURES
    assert model.kind in get_args(gpus.Kind)
    assert (model.compute_capability is not None) == (model.vendor == "nvidia")
    assert (model.gfx is not None) == (model.vendor == "amd")
    if model.gfx:
        assert re.fullmatch(r"gfx[0-9a-f]{3,4}", model.gfx)


@each
def test_numbers_are_possible(model: GpuModel) -> None:
    within = {
        "memory_bytes": (2**30, 2**40),
        "bandwidth_gb_per_s": (50, 20_000),
        "pcie_generation": (2, 6),
        "pcie_width": (4, 16),
        "nvlink_gb_per_s": (40, 4000),
        "power_w": (10, 2000),
    }
    for name, (least, most) in within.items():
        value = getattr(model, name)
        assert value is None or least <= value <= most, name
    assert (model.nvlink_gb_per_s is not None) <= ("nvlink" in model.features)


@each
def test_fewer_bits_are_not_slower(model: GpuModel) -> None:
    peaks = model.peaks_tflop_per_s
    order = [dtype for dtype in ("fp32", "tf32", "fp16", "fp8", "fp4") if dtype in peaks]
    for slower, faster in itertools.pairwise(order):
        assert peaks[slower] <= peaks[faster], (slower, faster)
    assert peaks.get("fp64", 0) <= peaks.get("fp32", float("inf"))
    assert all(peak > 0 for peak in peaks.values())
    if "bf16" in peaks and "fp16" in peaks:
        assert peaks["bf16"] == peaks["fp16"]


@each
def test_dense_figures_are_not_the_doubled_sparse_ones(model: GpuModel) -> None:
    """Dense tensor peaks rise by powers of two from dtype to dtype; a slip of one shows here."""
    peaks = model.peaks_tflop_per_s
    for narrow, wide in (("fp8", "fp16"), ("fp16", "tf32"), ("fp4", "fp8")):
        if narrow in peaks and wide in peaks:
            assert peaks[narrow] / peaks[wide] == pytest.approx(2, rel=0.02) or (
                model.architecture == "blackwell" and narrow == "fp4"
            )


@each
def test_features_agree_with_the_capability(model: GpuModel) -> None:
    if model.compute_capability is None:
        return
    assert model.compute_capability in CAPABILITIES[model.architecture]
    has = set(model.features)
    capability = model.compute_capability
    assert ("bf16" in has) == ("tf32" in has) == (capability >= (8, 0))
    assert ("fp8" in has) == (capability >= (8, 9))
    assert ("fp4" in has) == (capability >= (10, 0))
    without_tensor_cores = capability < (7, 0) or "GTX 16" in model.name
    assert ("tensor_cores" in has) != without_tensor_cores


@each
def test_a_peak_needs_its_feature(model: GpuModel) -> None:
    for dtype in {"bf16", "tf32", "fp8", "fp4"} & set(model.peaks_tflop_per_s):
        assert dtype in model.features
    if "fp16" in model.peaks_tflop_per_s:
        assert "tensor_cores" in model.features
