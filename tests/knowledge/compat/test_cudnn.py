"""cuDNN, against rows of NVIDIA's support matrices."""

from __future__ import annotations

import pytest

from flatout.knowledge.compat import cudnn


@pytest.mark.parametrize(
    ("version", "majors", "oldest"),
    [
        ("8.0", ("11",), (3, 5)),
        ("9.1.0.70", ("11", "12"), (5, 0)),
        ("9.10.2.21", ("11", "12"), (5, 0)),
        ("9.13.0.50", ("12", "13"), (7, 5)),
    ],
)
def test_cudnn(version: str, majors: tuple[str, ...], oldest: tuple[int, int]) -> None:
    found = cudnn.release(version)
    assert found is not None
    assert found.cuda_majors == majors
    assert found.oldest_capability == oldest


def test_an_unknown_cudnn_is_none() -> None:
    assert cudnn.release("7.6.5") is None
    assert cudnn.release("") is None
