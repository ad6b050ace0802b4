"""Errors of exporters and compilers, as they print them, in plain words."""

from __future__ import annotations

import pytest

from flatout.exporting import worker


@pytest.mark.parametrize(
    ("error", "message", "words"),
    [
        ("InvalidCxxCompiler", "No working C++ compiler found in ...", "there is no C++ compiler"),
        (
            "CppCompileError",
            "C++ compile error: x.h:1: fatal error: Python.h: No such file",
            "Python's headers are missing",
        ),
        (
            "OpConversionFailure",
            "No conversion rule found for operations: aten::_foo",
            "it does not know an operator of the model: aten::_foo",
        ),
        ("AssertionError", "Unsupported function types ['grid_sampler.default']", "grid_sampler"),
        ("MemoryError", "", "it ran out of memory"),
        ("OSError", "[Errno 28] No space left on device", "the disk is full"),
        ("KeyError", "'x'", "KeyError: 'x'"),
        ("AssertionError", "", "AssertionError"),
        ("RuntimeError", "plain words already", "plain words already"),
    ],
)
def test_reasons(error: str, message: str, words: str) -> None:
    found = worker.plain_reason({"error": error, "message": message, "last": message})
    assert words in found
