"""The self-tests through a stand-in that crashes and hangs, and with the real torch here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flatout.nouns.selftest import SelfTest
from flatout.probing import selftest

STAND_IN = """
import json, os, signal, sys, time

def tell(**said):
    print("flatout-answer " + json.dumps(said), flush=True)

def test(name, passed=True, message=None):
    if name not in sys.argv:
        tell(begin=name)
        if name == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if name == "hang":
            time.sleep(300)
        tell(name=name, passed=passed, figure="1 GB/s" if passed else None, message=message,
             seconds=0.5)
        if passed is False:
            os._exit(0)

print("noise")
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """An interpreter that tells what a test wants; the test adds what it does."""
    if os.name == "nt":
        pytest.skip("a script that the system starts by its first line")
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\n{STAND_IN}")
    path.chmod(0o755)
    return path


def run(stand_in: Path, code: str, limit_s: float = 120.0) -> tuple[SelfTest, ...]:
    with stand_in.open("a") as file:
        file.write(code)
    return selftest.run(str(stand_in), limit_s)


def test_after_a_crash_and_a_failure_the_others_still_run(stand_in: Path) -> None:
    names = ("import torch", "find devices", "one", "segfault", "wrong", "skipped", "last")
    code = "".join(f"test({name!r})\n" for name in names)
    code = code.replace("('wrong')", "('wrong', False, 'relative error 1')")
    code = code.replace("('skipped')", "('skipped', None, 'no compiler')")
    told = run(stand_in, code + "tell(done=True)\n")
    assert [(test.name, test.passed) for test in told] == [
        ("import torch", True),
        ("find devices", True),
        ("one", True),
        ("segfault", False),
        ("wrong", False),
        ("skipped", None),
        ("last", True),
    ]
    assert told[2] == SelfTest("one", True, "1 GB/s", None, 0.5)
    assert told[3].message == "ended by signal 11 (SIGSEGV)"
    assert told[4].message == "relative error 1"


def test_what_hangs_has_failed(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = [""]
    limits = {"hang": 0.3}
    monkeypatch.setattr(selftest, "_limit_s", lambda slow, limit_s: limits.get(begun[-1], 120.0))
    with stand_in.open("a") as file:
        file.write("test('import torch'); test('hang'); test('b'); tell(done=True)\n")
    told = selftest.run(str(stand_in), tell=begun.append)
    assert begun[1:] == ["import torch", "hang", "b"]  # each as it begins
    assert [(test.name, test.passed) for test in told] == [
        ("import torch", True),
        ("hang", False),
        ("b", True),
    ]
    assert told[1].message.startswith("did not end within 0.3")
    assert told[1].seconds >= 0.3


@pytest.mark.parametrize(
    "code",
    [
        "tell(begin='import torch'); os._exit(3)",
        "test('import torch', False, 'ImportError: libcudart.so.12')",
        *("", "print('flatout-answer {')", "tell(name=3, passed='yes')", "tell(begin=[])", "1/0"),
    ],
)
def test_without_torch_there_is_nothing_else_to_try_and_nonsense_is_a_failed_import(
    stand_in: Path, code: str
) -> None:
    told = run(stand_in, f"{code}\n")
    assert [(test.name, test.passed) for test in told] == [("import torch", False)]
    if code == "1/0":
        assert told[0].message == "ZeroDivisionError: division by zero"


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    (told,) = selftest.run(str(tmp_path / "python"))
    assert (told.name, told.passed) == ("import torch", False)
    assert "cannot be started" in (told.message or "")


@pytest.mark.gpu
def test_the_real_gpu_here() -> None:
    told = {test.name: test for test in selftest.run(sys.executable)}
    assert [test for test in told.values() if test.passed is False] == []
    assert told["copy to and from, cuda:0"].passed
    assert told["matrix product float16, cuda:0"].passed
