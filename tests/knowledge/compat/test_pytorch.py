"""PyTorch's builds, and which GPUs a build runs on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.knowledge.compat import pytorch

CAPABILITIES = st.tuples(st.integers(3, 13), st.integers(0, 9))
MIRROR = "https://mirror.example/pytorch-wheels"


def default_build(version: str, system: str) -> pytorch.TorchBuild | None:
    """What a plain `pip install torch` gets."""
    found = pytorch.release(version)
    return next((build for build in found.builds if system in build.default_on), None)


@pytest.mark.parametrize(
    "written",
    ["2.7", "2.7.1", "2.7.1+cu128", "2.7.0a0+git1234567", "2.7.0.dev20250301+cu128", "v2.7.0"],
)
def test_a_release_is_found_however_it_is_written(written: str) -> None:
    found = pytorch.release(written)
    assert (found.version, found.newest_patch) == ("2.7", "2.7.1")


@pytest.mark.parametrize("written", ["", "2", "2.70", "27", "1.11.0", "99.0", "nightly"])
def test_what_is_no_release_is_none(written: str) -> None:
    assert pytorch.release(written) is None
    assert pytorch.build(written, "cpu") is None


def test_systems_and_pythons_of_the_wheels() -> None:
    found = {item.version: item for item in pytorch.releases()}
    assert (found["2.5"].glibc, found["2.6"].glibc, found["2.7"].glibc) == ("2.17", "2.17", "2.28")
    newer = pytorch.build("2.6", "cu126")
    assert newer.glibc == "2.28"
    assert (found["2.11"].macos, found["2.12"].macos) == ("11.0", "14.0")
    assert "3.14t" in found["2.13"].pythons
    assert "3.9" not in found["2.9"].pythons


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("1.12", "cu102"),
        ("2.0", "cu117"),
        ("2.5", "cu124"),
        ("2.7", "cu126"),
        ("2.11", "cu130"),
        ("2.15", "cu132"),
    ],
)
def test_what_plain_pip_gets_on_linux(version: str, name: str) -> None:
    found = default_build(version, "linux-x86_64")
    assert found.name == name
    for system in ("windows-x86_64", "macos-arm64"):
        elsewhere = default_build(version, system)
        assert elsewhere.name == "cpu"


def test_a_build_knows_its_cuda_or_rocm() -> None:
    cu128 = pytorch.build("2.8", "cu128")
    rocm = pytorch.build("2.8", "rocm6.4")
    assert rocm is not None
    assert (cu128.cuda, cu128.rocm) == ("12.8", None)
    assert (rocm.cuda, rocm.rocm, rocm.systems) == (None, "6.4", ("linux-x86_64",))
    assert "gfx1201" in rocm.arch_list
    assert pytorch.build("2.8", "cu118") is None


def test_the_arch_list_depends_on_the_system() -> None:
    found = pytorch.build("2.11", "cu130")
    assert "sm_86" in found.arch_list_on("linux-x86_64")
    assert "sm_110" in found.arch_list_on("linux-aarch64")
    assert "sm_86" in found.arch_list_on("windows-x86_64")
    assert found.arch_list_on("macos-arm64") == ()


def test_an_address_is_made_with_and_without_a_mirror() -> None:
    plain = pytorch.index_url("cu128")
    assert plain.startswith("https://download.")
    assert plain.endswith("/whl/cu128")
    assert pytorch.index_url("cu128", MIRROR) == f"{MIRROR}/cu128"
    assert pytorch.index_url("cu128", f"{MIRROR}/") == f"{MIRROR}/cu128"
    assert pytorch.index_url("cpu", f"{MIRROR}/{{build}}/simple") == f"{MIRROR}/cpu/simple"


@pytest.mark.parametrize(
    ("listed", "capability", "runs"),
    [
        ("sm_86", (8, 6), True),
        ("sm_86", (8, 9), True),
        ("sm_86", (9, 0), False),
        ("sm_86", (8, 0), False),
        ("sm_80", (8, 6), True),
        ("sm_90", (10, 0), False),
        ("compute_90a", (10, 0), False),
        ("sm_100f", (10, 0), True),
        ("sm_100f", (10, 3), True),
        ("sm_103f", (10, 0), False),
        ("sm_100f", (11, 0), False),
        ("sm_100f", (12, 0), False),
        ("sm_120", (12, 1), True),
        ("sm_120f", (12, 1), True),
        ("sm_121", (12, 0), False),
        ("sm_100", (12, 0), False),
        ("gfx942", (9, 4), False),
        ("", (8, 0), False),
    ],
)
def test_nvidias_rules(listed: str, capability: tuple[int, int], runs: bool) -> None:
    assert pytorch.supports((listed,), capability) is runs


@given(CAPABILITIES, CAPABILITIES)
def test_portable_code_runs_on_everything_newer(
    built: tuple[int, int], gpu: tuple[int, int]
) -> None:
    assert pytorch.supports((f"compute_{built[0]}{built[1]}",), gpu) == (gpu >= built)


@given(CAPABILITIES, CAPABILITIES)
def test_special_code_runs_on_exactly_one(built: tuple[int, int], gpu: tuple[int, int]) -> None:
    assert pytorch.supports((f"sm_{built[0]}{built[1]}a",), gpu) == (gpu == built)


@given(CAPABILITIES, CAPABILITIES)
def test_family_code_never_leaves_the_major(built: tuple[int, int], gpu: tuple[int, int]) -> None:
    if pytorch.supports((f"sm_{built[0]}{built[1]}f",), gpu):
        assert built[0] == gpu[0]
        assert built[1] <= gpu[1]


@given(st.lists(st.text(max_size=8), max_size=4).map(tuple), CAPABILITIES)
def test_more_kernels_never_run_less(listed: tuple[str, ...], gpu: tuple[int, int]) -> None:
    assert pytorch.supports((*listed, f"sm_{gpu[0]}{gpu[1]}"), gpu)


def test_the_oldest_capability_of_a_list() -> None:
    assert pytorch.oldest_capability(("sm_75", "sm_100", "compute_120")) == (7, 5)
    assert pytorch.oldest_capability(("gfx942",)) is None
    assert pytorch.oldest_capability(()) is None
