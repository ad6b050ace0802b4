"""TensorFlow, against its tested build configurations."""

from __future__ import annotations

import pytest

from flatout.knowledge.compat import tensorflow


@pytest.mark.parametrize(
    ("version", "toolkit", "library", "python"),
    [
        ("2.10.1", "11.2", "8.1", "3.10"),
        ("2.15.1", "12.2", "8.9", "3.11"),
        ("2.17.1", "12.3", "8.9", "3.12"),
        ("2.21.0", "12.5", "9.3", "3.13"),
    ],
)
def test_tensorflow(version: str, toolkit: str, library: str, python: str) -> None:
    found = tensorflow.release(version)
    assert found is not None
    assert (found.cuda, found.cudnn, found.pythons[-1]) == (toolkit, library, python)


def test_an_old_tensorflow_is_not_in_the_table() -> None:
    assert tensorflow.release("1.15.5") is None
