"""A process that fails, crashes, hangs or takes too much memory is told by its reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.exporting import worker
from flatout.exporting.worker import Broken

WRITES = """
import sys, json
out = sys.stdout
def tell(answer):
    out.write("flatout-answer " + json.dumps(answer) + "\\n")
    out.flush()
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Another program in place of ours."""

    def plant(code: str) -> dict[str, Any]:
        path = tmp_path / "program.py"
        path.write_text(WRITES + code, encoding="utf-8")
        monkeypatch.setattr(worker.conversation, "program", lambda name: path)
        return {"do": "build", "threads": 1}

    return plant


def once(order: dict[str, Any], limit_s: float = 20.0, memory: int = 2**40) -> dict[str, Any]:
    return worker.once(sys.executable, order, limit_s, memory)


def test_an_answer(planted: Any) -> None:
    assert once(planted('tell({"options": {"a": 1}})')) == {"options": {"a": 1}}


REFUSES = 'tell({"error": "RuntimeError", "message": "no kernel", "last": "a trace"})'
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
GROWS = "held = bytearray(200 * 2**20); import time; time.sleep(60)"
MIB_100 = 100 * 2**20


@pytest.mark.parametrize(
    ("code", "limit_s", "memory", "told"),
    [
        (REFUSES, 20.0, 2**40, r"^no kernel$"),
        pytest.param(
            DIES,
            20.0,
            2**40,
            r"its process crashed: .*SIG",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's"),
        ),
        ("raise SystemExit(3)", 20.0, 2**40, "its process crashed: ended with exit code 3"),
        pytest.param(
            "import time; time.sleep(60)",
            1.0,
            2**40,
            "it took longer than 1 s",
            marks=pytest.mark.slow,
        ),
        (GROWS, 20.0, MIB_100, "MiB of memory, 100 MiB is the limit"),
    ],
)
def test_why_there_is_no_answer(
    planted: Any, code: str, limit_s: float, memory: int, told: str
) -> None:
    with pytest.raises(Broken, match=told):
        once(planted(code), limit_s, memory)


def test_orders_and_answers_in_turn(planted: Any) -> None:
    code = "for line in sys.stdin: tell({'twice': 2 * json.loads(line)['value']})"
    with worker.start(sys.executable, planted(code), 2**40) as process:
        assert [process.ask({"value": n}, 120.0)["twice"] for n in (1, 2, 3)] == [2, 4, 6]


def test_the_interpreter_is_not_there() -> None:
    with pytest.raises(Broken, match="cannot be started"):
        worker.once("/nowhere/python", {"do": "build", "threads": 1}, 5.0, 2**40)


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
