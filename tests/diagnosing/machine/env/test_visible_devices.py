from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flatout.diagnosing.machine.env import visible_devices
from machines import healthy

GPUS = healthy.h100().gpus or ()
words = st.text(alphabet="0123456789-+,abMIGPU /", max_size=24)


def test_read_from_left_to_right() -> None:
    reading = visible_devices.read("0,2,-1,1", GPUS)
    assert reading.visible == ("0", "2")
    assert reading.wrong == "-1"
    assert reading.usable == ("0", "2", "1")


def test_twice_leaves_none() -> None:
    reading = visible_devices.read("0,1,0", GPUS)
    assert reading.visible == ()
    assert reading.usable == ("0", "1")


@given(words)
def test_any_value_is_read(value: str) -> None:
    reading = visible_devices.read(value, GPUS)
    entries = [entry.strip() for entry in value.split(",")]
    assert set(reading.visible) <= set(entries)
    assert reading.wrong is None or reading.wrong in entries
    assert (reading.wrong is None) == (len(reading.visible) == len(entries))
    assert bool(reading.reason) == (reading.wrong is not None)


@given(st.permutations(range(8)), st.integers(1, 8))
def test_numbers_that_are_there_are_right(order: list[int], count: int) -> None:
    value = ",".join(map(str, order[:count]))
    assert visible_devices.read(value, GPUS).wrong is None
    assert not visible_devices.hides_all(value)
