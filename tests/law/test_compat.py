"""The compatibility tables: ordered, without holes, sourced, and in agreement with each other."""

from __future__ import annotations

import datetime
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from every import for_every
from flatout.knowledge.compat import cuda, pytorch, tables

FOLDER = Path(tables.__file__).parent
FILES = sorted(FOLDER.glob("*.toml"))
RELEASES: dict[str, tuple[Any, ...]] = {
    "cuda": cuda.releases(),
    "pytorch": pytorch.releases(),
}
each_torch = for_every(pytorch.releases(), lambda release: release.version)
each_build = for_every(
    [(release, build) for release in pytorch.releases() for build in release.builds],
    lambda wheel: f"{wheel[0].version} {wheel[1].name}",
)
each_toolkit = for_every(cuda.releases(), lambda release: release.version)


def entries(value: object, inside: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each [[table]] of a file with its name; those within another are its parts."""
    assert isinstance(value, dict)
    for name, field in value.items():
        if isinstance(field, list) and field and isinstance(field[0], dict):
            for item in field:
                yield inside + name, item


def arch_lists(build: pytorch.TorchBuild) -> list[tuple[str, ...]]:
    lists = (build.arch_list, build.windows_arch_list, build.aarch64_arch_list)
    return [one for one in lists if one]


@for_every(FILES, lambda path: path.name)
def test_every_file_says_when_it_was_checked_and_every_entry_where_it_is_from(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    table = tomllib.loads(text)
    assert datetime.date.fromisoformat(table["checked"]) >= datetime.date(2026, 11, 21)
    found = list(entries(table))
    assert found
    for name, entry in found:
        assert re.match(r"https://[\w.-]+/", entry.get("source", "")), f"{name}: {entry}"


@for_every(RELEASES)
def test_versions_and_dates_rise(table: str) -> None:
    found = RELEASES[table]
    for earlier, later in itertools.pairwise(found):
        assert Version(earlier.version) < Version(later.version)
        assert earlier.released <= later.released, f"{later.version} is older than its forerunner"


@for_every(RELEASES)
def test_there_is_no_hole_between_releases(table: str) -> None:
    missing = []
    known = {release.version for release in RELEASES[table]} | set(cuda.never_released())
    for earlier, later in itertools.pairwise(release.version for release in RELEASES[table]):
        major, minor = (int(part) for part in earlier.split("."))
        next_minor = f"{major}.{minor + 1}"
        if next_minor not in known and later != f"{major + 1}.0":
            missing.append(next_minor)
    assert not missing


def test_a_major_ends_where_it_really_ended() -> None:
    last = {"cuda": {"11": "11.8", "12": "12.9"}, "pytorch": {"1": "1.13"}}
    for table, ends in last.items():
        for major, end in ends.items():
            found = [one.version for one in RELEASES[table] if one.version.split(".")[0] == major]
            assert found[-1] == end


def test_the_tables_reach_as_far_back_as_they_promise() -> None:
    first = {table: found[0].version for table, found in RELEASES.items()}
    promised = {"cuda": "11.0", "pytorch": "1.12"}
    assert {table: first[table] for table in promised} == promised


@for_every(["Linux", "Windows"])
def test_a_newer_cuda_never_asks_for_an_older_driver(system: str) -> None:
    found = [driver for one in cuda.releases() if (driver := cuda.full_driver(one.version, system))]
    assert len(found) >= 18
    assert [Version(driver) for driver in found] == sorted({Version(driver) for driver in found})
    least = [
        driver for one in cuda.releases() if (driver := cuda.minimum_driver(one.version, system))
    ]
    assert [Version(driver) for driver in least] == sorted(Version(driver) for driver in least)


@each_toolkit
def test_running_never_asks_for_more_than_everything(release: cuda.CudaRelease) -> None:
    for system in ("Linux", "Windows"):
        least = cuda.minimum_driver(release.version, system)
        full = cuda.full_driver(release.version, system)
        assert least is not None
        assert full is None or Version(least) <= Version(full), system
        assert cuda.driver_runs(least, release.version, system)


def test_cuda_majors_all_have_a_driver_range() -> None:
    majors = {release.version.split(".")[0] for release in cuda.releases()}
    assert majors == {row.major for row in cuda.driver_ranges()}


@each_toolkit
def test_capabilities_of_a_toolkit_are_in_order(release: cuda.CudaRelease) -> None:
    assert release.oldest_capability == min(release.capabilities)
    assert release.newest_capability == max(release.capabilities)


def test_a_toolkit_of_the_same_major_forgets_no_gpu() -> None:
    for earlier, later in itertools.pairwise(cuda.releases()):
        if earlier.version.split(".")[0] == later.version.split(".")[0]:
            assert set(earlier.capabilities) <= set(later.capabilities)


def test_every_cuda_that_others_name_is_in_the_table() -> None:
    first = Version(cuda.releases()[0].version)
    named = {build.cuda for release in pytorch.releases() for build in release.builds}
    for version in named - {None}:
        assert version is not None
        assert cuda.release(version) is not None or Version(version) < first


@each_build
def test_arch_lists_are_well_formed_and_within_the_toolkit(
    wheel: tuple[pytorch.TorchRelease, pytorch.TorchBuild],
) -> None:
    release, build = wheel
    pattern = r"gfx[0-9a-f]{3,4}" if build.rocm else r"(sm|compute)_\d{2,3}[af]?"
    toolkit = cuda.release(build.cuda) if build.cuda else None
    for listed in arch_lists(build):
        assert len(set(listed)) == len(listed)
        assert all(re.fullmatch(pattern, item) for item in listed)
        for item in listed:
            if toolkit is not None:
                digits = re.sub(r"\D", "", item)
                assert (int(digits[:-1]), int(digits[-1])) in toolkit.capabilities
    assert not (arch_lists(build) and not (build.cuda or build.rocm)), release.version


@each_build
def test_wheels_for_arm_hold_kernels_for_what_arm_servers_have(
    wheel: tuple[pytorch.TorchRelease, pytorch.TorchBuild],
) -> None:
    """No GPU before Ampere, and of Ampere the A100 alone, stands in an ARM server."""
    release, build = wheel
    assert not build.aarch64_arch_list or "linux-aarch64" in build.systems, release.version
    numbers = {int(re.sub(r"\D", "", item)) for item in build.aarch64_arch_list}
    assert all(number == 80 or number >= 90 for number in numbers)


@each_build
def test_an_arch_list_says_where_it_is_from(
    wheel: tuple[pytorch.TorchRelease, pytorch.TorchBuild],
) -> None:
    release, build = wheel
    if arch_lists(build):
        assert build.source or release.source
        assert build.source is not None


@each_torch
def test_every_system_has_one_default_and_a_cpu_build(release: pytorch.TorchRelease) -> None:
    systems = {system for build in release.builds for system in build.systems}
    defaults = [system for build in release.builds for system in build.default_on]
    assert sorted(defaults) == sorted(systems)
    assert all(set(build.default_on) <= set(build.systems) for build in release.builds)
    cpu = pytorch.build(release.version, "cpu")
    assert cpu is not None
    assert set(cpu.systems) == systems
    names = [build.name for build in release.builds]
    assert len(set(names)) == len(names)


@each_torch
def test_names_of_builds_are_parts_of_an_address(release: pytorch.TorchRelease) -> None:
    for build in release.builds:
        assert re.fullmatch(r"cpu|xpu|cu\d{3}|rocm\d+(\.\d+)+", build.name)
        assert (build.cuda is not None) == build.name.startswith("cu")
        assert (build.rocm is not None) == build.name.startswith("rocm")
        assert build.cudnn is None or build.cuda


@each_torch
def test_a_torch_release_is_complete(release: pytorch.TorchRelease) -> None:
    assert release.newest_patch.startswith(f"{release.version}.")
    numbers = [Version(python.removesuffix("t")) for python in release.pythons]
    plain = [Version(python) for python in release.pythons if not python.endswith("t")]
    assert plain == sorted(plain)
    assert {one.minor for one in plain} == set(range(plain[0].minor, plain[-1].minor + 1))
    assert set(numbers) == set(plain)
    assert release.torchvision
    assert release.macos
    assert re.fullmatch(r"2\.\d\d", release.glibc)


def test_nothing_comes_back_that_has_ended() -> None:
    """A Python or an oldest system that a release dropped stays dropped."""
    for earlier, later in itertools.pairwise(pytorch.releases()):
        assert Version(earlier.pythons[0]) <= Version(later.pythons[0])
        assert Version(earlier.glibc) <= Version(later.glibc)
        assert Version(earlier.macos or "0") <= Version(later.macos or "0")
