"""Operating systems, against the names of the published wheels."""

from __future__ import annotations

import pytest

from flatout.knowledge.compat import pytorch, systems


def test_oldest_systems() -> None:
    assert systems.oldest_glibc("2.5.1") == "2.17"
    assert systems.oldest_glibc("2.6.0+cu124") == "2.17"
    assert systems.oldest_glibc("2.6.0", "cu126") == "2.28"
    assert systems.oldest_glibc("2.7.0") == "2.28"
    assert systems.oldest_glibc("1.0") is None
    assert systems.oldest_macos("2.11") == "11.0"
    assert systems.oldest_macos("2.12") == "14.0"
    assert systems.oldest_macos("1.0") is None


@pytest.mark.parametrize(
    ("system", "version", "newest"),
    [
        ("glibc", "2.12", None),
        ("glibc", "2.17", "2.6"),
        ("glibc", "2.27", "2.6"),
        ("glibc", "2.39", pytorch.newest().version),
        ("macos", "13.6", "2.11"),
        ("macos", "15.1", pytorch.newest().version),
        ("macos", "10.15", None),
        ("macos", "garbage", None),
        ("beos", "5.0", None),
    ],
)
def test_the_newest_torch_for_a_system(system: str, version: str, newest: str | None) -> None:
    assert systems.newest_torch_for(system, version) == newest


def test_pythons_of_a_release() -> None:
    assert "3.14t" in systems.pythons_of("2.13")
    assert "3.9" not in systems.pythons_of("2.9")
    assert systems.pythons_of("0.4") == ()
