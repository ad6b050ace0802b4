import math

import pytest
from hypothesis import given, strategies

from flatout.nouns import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.milliseconds(1514.2), "1514 ms"),
        (units.milliseconds(41.23), "41.2 ms"),
        (units.rate(78.04), "78 samples/s"),
        (units.rate(2.113), "2.1 samples/s"),
        (units.ratio(1.524), "1.52x"),
        (units.ratio(123.4), "123x"),
        (units.ratios((3.516, 12.34)), "3.52-12.3"),
        (units.share(0.0091), "0.9%"),
        (units.share(0.0), "0%"),
        (units.share(1.0), "100%"),
        (units.size(1536), "1.5 KiB"),
        (units.size(3435973837), "3.2 GiB"),
        (units.duration(3.21), "3.2 s"),
        (units.duration(75), "1 min 15 s"),
        (units.count(1, "step"), "1 step"),
        (units.count(None, "step"), "unknown steps"),
    ],
)
def test_numbers_read_as_people_write_them(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_not_known_is_never_a_number(value: float | None) -> None:
    for show in (
        units.milliseconds,
        units.rate,
        units.ratio,
        units.share,
        units.size,
        units.duration,
    ):
        assert show(value) == "unknown"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10%", 0.1),
        ("12.5 %", 0.125),
        ("150%", 1.5),
        ("0.1", 0.1),
        (".1", 0.1),
        (" 0.05 ", 0.05),
        ("0", 0.0),
        ("0.5%", 0.005),
    ],
)
def test_portions(text: str, value: float) -> None:
    assert units.portion(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["10", "1", "1.0", "", "%", "-5%", "much", "nan", "1e-1", "10%%"])
def test_a_number_of_which_the_meaning_is_open_is_no_portion(text: str) -> None:
    assert units.portion(text) is None


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("11.90 GiB", 11.9 * 2**30),
        (" 512 mb ", 512 * 2**20),
        ("2 TB", 2 * 2**40),
        ("17", 17.0),
        ("3 bytes", 3.0),
        ("1.2.3 GiB", None),
        ("3 apples", None),
        ("", None),
        (None, None),
    ],
)
def test_sizes_that_software_prints(text: str | None, size_bytes: float | None) -> None:
    assert units.size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("1.5h", 5400.0),
        ("10 m", 600.0),
        ("1m44s", 104.0),
        ("1 min 27 s", 87.0),
        ("2 h 05 min", 7500.0),
        ("1h2m3s", 3723.0),
        ("", None),
        ("1m44", None),
        ("44s1m", None),
        ("1.2.3s", None),
        ("soon", None),
    ],
)
def test_times(text: str, value: float | None) -> None:
    assert units.seconds(text) == value


@given(strategies.floats(0.05, 1e6))
def test_a_time_that_is_printed_is_accepted_as_input(seconds: float) -> None:
    read = units.seconds(units.duration(seconds))
    assert read is not None
    assert read == pytest.approx(seconds, abs=30.1 if seconds >= 3599 else 0.51)
