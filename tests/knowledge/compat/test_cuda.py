"""CUDA and drivers, against rows that NVIDIA's own tables show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.knowledge.compat import cuda


@pytest.mark.parametrize("written", ["12.8", "12.8.1", "12.8.93", "V12.8", " 12.8 "])
def test_a_release_is_found_however_it_is_written(written: str) -> None:
    found = cuda.release(written)
    assert found.version == "12.8"


@pytest.mark.parametrize("written", ["", "12", "12.7", "99.1", "not a version", "1.28", "12.80"])
def test_what_is_no_release_is_none(written: str) -> None:
    assert cuda.release(written) is None
    assert cuda.minimum_driver(written, "Linux") is None
    assert cuda.full_driver(written, "Linux") is None
    assert cuda.driver_runs("580.65.06", written, "Linux") is None


@pytest.mark.parametrize(
    ("version", "system", "driver"),
    [
        ("11.8", "Linux", "450.80.02"),
        ("11.0", "Linux", "450.51.05"),
        ("12.8", "Linux", "525.60.13"),
        ("12.8", "Windows", "528.33"),
        ("13.0", "Windows", "580"),
    ],
)
def test_minimum_drivers(version: str, system: str, driver: str) -> None:
    assert cuda.minimum_driver(version, system) == driver


@pytest.mark.parametrize(
    ("driver", "system", "newest"),
    [
        ("470.57.02", "Linux", "11.8"),
        ("535.183.01", "Linux", "12.9"),
        ("525.60.12", "Linux", "11.8"),
        ("566.36", "Windows", "12.9"),
        ("440.33", "Linux", None),
        ("garbage", "Linux", None),
    ],
)
def test_the_newest_cuda_for_a_driver(driver: str, system: str, newest: str | None) -> None:
    assert cuda.newest_for_driver(driver, system) == newest


def test_a_driver_of_branch_580_runs_everything_of_13() -> None:
    newest = cuda.releases()[-1].version
    assert cuda.newest_for_driver("580.65.06", "Linux") == newest
    assert cuda.newest_for_driver("580.65.06", "linux") == newest
    assert cuda.driver_runs("580.65.06", newest, "Linux") is True
    assert cuda.driver_runs("575.57.08", newest, "Linux") is False


@given(st.text(max_size=20), st.text(max_size=20), st.sampled_from(["Linux", "Windows", "Plan9"]))
def test_garbage_is_never_a_crash_nor_an_answer(driver: str, version: str, system: str) -> None:
    if cuda.release(version) is None:
        assert cuda.driver_runs(driver, version, system) is None
    cuda.newest_for_driver(driver, system)


@given(st.integers(300, 900), st.integers(300, 900))
def test_a_newer_driver_never_runs_less(one: int, other: int) -> None:
    older, newer = sorted((one, other))
    order = [release.version for release in cuda.releases()]
    for system in ("Linux", "Windows"):
        less = cuda.newest_for_driver(f"{older}.10", system)
        more = cuda.newest_for_driver(f"{newer}.10", system)
        assert less is None or (more is not None and order.index(less) <= order.index(more))


@pytest.mark.parametrize(
    ("capability", "branch"),
    [((2, 0), "390"), ((5, 0), "580"), ((7, 0), "580"), ((12, 0), None)],
)
def test_the_last_driver_of_old_gpus(capability: tuple[int, int], branch: str | None) -> None:
    assert cuda.last_driver_branch(capability) == branch


def test_capabilities_between_the_ends() -> None:
    ada, hopper, rubin = (8, 9), (9, 0), (10, 7)
    known = {release.version: set(release.capabilities) for release in cuda.releases()}
    assert not {ada, hopper} & known["11.7"]
    assert {ada, hopper} <= known["11.8"]
    assert (10, 3) in known["12.9"] - known["12.8"]
    assert (11, 0) in known["13.0"] - known["12.9"]
    assert rubin in known["13.4"] - known["13.3"]


@pytest.mark.parametrize(
    ("capability", "version"),
    [
        *(((8, 6), "11.1"), ((8, 9), "11.8"), ((10, 0), "12.8"), ((10, 3), "12.9")),
        *(((12, 1), "12.9"), ((99, 9), None)),
    ],
)
def test_the_first_toolkit_for_a_gpu(capability: tuple[int, int], version: str | None) -> None:
    found = cuda.first_for(capability)
    assert (found and found.version) == version
