"""The GPU of an Apple chip, from what sysctl says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.gpu import Gpu
from flatout.probing import apple

GIB = 2**30


def test_apple_silicon() -> None:
    assert apple.from_sysctl("Apple M3 Max\n", "68719476736\n") == (
        Gpu(
            vendor="apple",
            name="Apple M3 Max",
            index=0,
            driver_sees=True,
            memory_bytes=64 * GIB,
            shared_memory=True,
        ),
    )
    assert apple.from_sysctl("Apple M1", "")[0].memory_bytes is None


def test_under_rosetta_the_chip_has_no_name_of_its_own() -> None:
    (chip,) = apple.from_sysctl("VirtualApple @ 2.50GHz", "")
    assert (chip.vendor, chip.name) == ("apple", "Apple chip")


@given(st.text(), st.text())
def test_garbage_is_no_fact(brand: str, memory: str) -> None:
    assert apple.from_sysctl(brand, memory) == ()
