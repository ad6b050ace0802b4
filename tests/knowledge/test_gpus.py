from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest

from flatout.knowledge import gpus
from flatout.knowledge.gpus import GpuModel

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200-sxm"),
        ("nvidia h200 nvl", "h200-nvl"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("GeForce GTX 1080 Ti", "gtx-1080-ti"),
        ("rtx4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("AMD Instinct MI300X", "mi300x"),
        ("mi250", "mi250"),
        ("Intel(R) Data Center GPU Max 1550", "max-1550"),
        ("Apple M3 Max", "m3-max"),
        ("m1", "m1"),
    ],
)
def test_a_name_finds_its_model(name: str, wanted: str) -> None:
    model = gpus.find(name)
    assert model.id == wanted


@pytest.mark.parametrize("name", ["", "NVIDIA", "RTX", "GeForce", "jetson", "Voodoo 2", "4090"])
def test_a_name_that_means_nothing_or_too_much_finds_nothing(name: str) -> None:
    assert gpus.find(name) is None


def test_a_family_has_what_its_members_share_and_nothing_else() -> None:
    family = gpus.find("h100")
    assert (family.id, family.name, family.compute_capability) == ("h100", "NVIDIA H100", (9, 0))
    assert (family.pcie_generation, family.memory_bytes, family.bandwidth_gb_per_s) == (
        5,
        None,
        None,
    )
    assert "fp16" not in family.peaks_tflop_per_s
    ampere = gpus.find("a100")
    assert ampere.peaks_tflop_per_s["bf16"] == 312
    assert ampere.power_w is None


def test_memory_tells_models_of_one_name_apart() -> None:
    name = "NVIDIA GeForce RTX 3080"
    small, large = gpus.find(name, 10 * GIB), gpus.find(name, 12 * GIB)
    assert (small.id, large.id) == ("rtx-3080", "rtx-3080-12gb")
    either = gpus.find(name)
    assert either.compute_capability == (8, 6)
    assert either.bandwidth_gb_per_s is None
    strange = gpus.find(name, 99 * GIB)
    assert strange == either


def test_nearest_names_what_could_be_meant() -> None:
    assert gpus.nearest("4090")[0] == "rtx-4090"
    assert set(gpus.nearest("jetson")) >= {"jetson-orin", "jetson-thor"}
    assert "rtx-4090" in gpus.nearest("rtx 4099")
    assert gpus.nearest("") == ()
    assert gpus.nearest("zzzzzzzz") == ()


def model(name: str, unverified: tuple[str, ...], **changes: Any) -> GpuModel:
    """A made-up member of a family."""
    known = gpus.find("h100-sxm")
    assert known is not None
    return dataclasses.replace(known, id=name, unverified=unverified, **changes)


def test_what_is_unverified_of_one_member_is_of_the_family_where_the_number_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = model("z1-a", ("power_w", "memory_gb", "peaks_tflop_per_s.fp16"))
    other = model("z1-b", ("peaks_tflop_per_s.fp16", "peaks_tflop_per_s.fp8"), power_w=1.0)
    monkeypatch.setattr(gpus, "_candidates", lambda key: (one, other))
    family = gpus.find("z1")
    assert family.power_w is None
    assert family.unverified == (
        "memory_gb",
        "peaks_tflop_per_s.fp16",
        "peaks_tflop_per_s.fp8",
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "server"),
        ("Tesla K80", "server"),
        ("NVIDIA A16", "server"),
        ("AMD Instinct MI100", "server"),
        ("Intel(R) Data Center GPU Flex 170", "server"),
        ("Quadro P2000", "workstation"),
        ("NVIDIA T1000 8GB", "workstation"),
        ("NVIDIA RTX A2000 12GB", "workstation"),
        ("AMD Radeon PRO W7900", "workstation"),
        ("NVIDIA GeForce RTX 4090", "consumer"),
        ("Intel(R) Arc(TM) A750 Graphics", "consumer"),
        ("NVIDIA GB10", "integrated"),
        ("Apple M3 Max", "integrated"),
        ("Orin (nvgpu)", "jetson"),
        ("NVIDIA GeForce MX150", None),
        ("AMD Radeon Graphics", None),
        ("", None),
        (None, None),
    ],
)
def test_the_kind_also_of_what_has_no_data_sheet(name: str | None, kind: str | None) -> None:
    assert gpus.kind(name) == kind


def test_models_and_product_lines_agree() -> None:
    for model in gpus.models():
        for name in model.names:
            beginning = gpus.without_maker(name)
            line = next((line for line in gpus.lines() if line.names.match(beginning)), None)
            if line is not None:
                assert (line.kind, name) == (model.kind, name)
                assert ("nvlink_c2c" in line.features) == ("nvlink_c2c" in model.features), name


def test_every_kind_is_one_of_those_that_are_known() -> None:
    entries = (*gpus.models(), *gpus.lines())
    assert {entry.kind for entry in entries} == set(get_args(gpus.Kind))
