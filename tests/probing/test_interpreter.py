"""The user's interpreter through the agent's facts.py: real ones, broken ones, and late ones."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.interpreter import Interpreter, Torch
from flatout.probing import conversation, interpreter
from probing.fake_packages import CUDA_TORCH, CUDA_VERSION, bare, gone, install, site

posix = pytest.mark.skipif(os.name == "nt", reason="signals and shell scripts")
ENOUGH_S = 120.0
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
NAMES = [item.name for item in dataclasses.fields(Interpreter)]
TORCH_NAMES = [item.name for item in dataclasses.fields(Torch)]


@pytest.fixture
def python(tmp_path: Path) -> str:
    return bare(tmp_path / "venv")


def ask(python: str, limit_s: float = ENOUGH_S, **environ: str) -> Interpreter:
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return interpreter.start(python, environ=plain | environ).answer(limit_s)


def broken(python: str, code: str) -> Torch:
    """What is told of a torch whose import runs `code`."""
    install(site(python), "torch", "2.7.1", version=CUDA_VERSION, __init__=CUDA_TORCH + code)
    told = ask(python).torch
    assert told is not None
    return told


@pytest.mark.slow
def test_the_real_torch_here() -> None:
    import torch

    told = interpreter.interpreter(sys.executable, limit_s=ENOUGH_S)
    assert told.error is None
    assert told.version == ".".join(map(str, sys.version_info[:3]))
    assert f"{told.torch.version}+{told.torch.build}" in (
        torch.__version__,
        f"{torch.__version__}+None",
    )
    assert told.torch.imported is True
    assert told.torch.cuda_available is torch.cuda.is_available()
    assert told.torch.device_count == torch.cuda.device_count()
    assert told.torch.compile_works is None
    assert told.compiler_searched


@pytest.mark.slow
def test_an_import_that_hangs_is_ended_with_its_children(python: str, tmp_path: Path) -> None:
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(300)
"""
    install(site(python), "torch", "2.7.1", version=CUDA_VERSION, __init__=code)
    question = interpreter.start(python)
    until = time.monotonic() + ENOUGH_S
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    began = time.monotonic()
    told = question.answer(0.5)
    assert time.monotonic() - began < 120  # and not 300
    assert (told.torch.version, told.torch.cuda) == ("2.7.1", "12.8")
    assert (told.torch.imported, told.torch.import_error, told.error) == (None, None, None)
    assert gone(int((tmp_path / "pid").read_text()))


@posix
def test_a_crash_while_importing(python: str) -> None:
    torch = broken(python, "\nimport os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n")
    assert torch.imported is False
    assert torch.import_error == "ended by signal 11 (SIGSEGV)"


@posix
def test_a_crash_while_looking_for_devices(python: str) -> None:
    code = "\nimport os\nCuda.is_available = lambda self: os._exit(7)\n"
    torch = broken(python, code)
    assert (torch.imported, torch.import_error) == (True, None)
    assert torch.arch_list == ("sm_75", "sm_80", "compute_90")
    assert torch.cuda_available is None
    assert torch.cuda_error == "torch was looking for devices: ended with exit code 7"


def test_no_torch_and_no_such_interpreter(python: str, tmp_path: Path) -> None:
    told = ask(python)
    assert (told.torch, told.packages, told.error) == (None, (), None)
    told = ask(str(tmp_path / "python"))
    assert told.executable == str(tmp_path / "python")
    assert told.error.startswith("cannot be started: ")


@posix
@pytest.mark.parametrize(
    ("script", "version", "error"),
    [
        ("echo 'Fatal Python error: init' >&2; exit 1", None, "Fatal Python error: init"),
        ("exit 0", None, "ended with exit code 0"),
        ("kill -9 $$", None, "ended by signal 9 (SIGKILL)"),
        ("printf 2.7.18", "2.7.18", "Python 2.7.18 is too old to be queried; the oldest is 3.7"),
        ("printf 3.12.1", "3.12.1", "ended with exit code 0"),
        ("echo 'flatout-answer {\"version\": 3}'", None, "ended with exit code 0"),
        ("sleep 60", None, "no answer within 0.4 s"),
    ],
)
def test_what_is_no_usable_python(
    tmp_path: Path, script: str, version: str | None, error: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    late = "sleep" in script
    told = ask(str(program), 0.4 if late else ENOUGH_S)
    assert told == Interpreter(
        executable=str(program), version=version, error=error, timed_out=late
    )


def test_the_environment_is_the_users_without_our_orders(python: str, tmp_path: Path) -> None:
    code = "import os; raise ImportError(os.environ.get('FLATOUT_ORDERS'), os.environ['MINE'])"
    install(tmp_path / "own", "torch", "2.7.1", __init__=code)
    path = str(tmp_path / "own")
    torch = ask(python, PYTHONPATH=path, MINE="kept", FLATOUT_ORDERS="x").torch
    assert torch.import_error == "ImportError: (None, 'kept')"


def told_in(lines: list[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for line in lines:
        interpreter.add(facts, conversation.answer(line))
    return facts


def test_later_lines_complete_earlier_ones() -> None:
    lines = [
        "noise\n",
        'flatout-answer {"version": "3.11.7", "torch": {"version": "2.7.1"}}\n',
        'cut short flatout-answer {"torch": {"imported": true}}\n',
        "flatout-answer {broken\n",
        "flatout-answer [1]\n",
    ]
    told = {"version": "3.11.7", "torch": {"version": "2.7.1", "imported": True}}
    assert told_in(lines) == told
    numbers = told_in(['flatout-answer {"a": NaN, "b": 1e999, "c": 1.5}'])
    assert numbers == {"a": None, "b": None, "c": 1.5}


@given(st.lists(JSON.map(lambda value: f"flatout-answer {json.dumps(value)}") | st.text()))
def test_any_lines_are_heard(lines: list[str]) -> None:
    assert isinstance(told_in(lines), dict)


@given(
    st.dictionaries(st.sampled_from(NAMES), JSON),
    st.none() | st.dictionaries(st.sampled_from(TORCH_NAMES), JSON),
    st.booleans(),
)
def test_any_values_are_facts_of_their_type_or_none(
    raw: dict[str, Any], torch: dict[str, Any] | None, late: bool
) -> None:
    given = raw if torch is None else {**raw, "torch": torch}
    heard = told_in([f"flatout-answer {json.dumps(given)}"])
    told = interpreter._decoded(heard)
    assert isinstance(told, Interpreter)
    assert told.version is None or isinstance(told.version, str)
    assert told.bits is None or type(told.bits) is int
    if told.torch is not None:
        assert told.torch.imported in (None, True, False)
        assert told.torch.version == heard["torch"].get("version") or told.torch.version is None
    ended = interpreter.interrupted(told, heard, "ended", late)
    if late and told.torch is None:
        assert ended == told


def test_requirements_that_hold_here() -> None:
    machine = platform.machine()
    needs = (
        f'nvidia-cublas-cu12==12.8.4.1; platform_machine == "{machine}"',
        'nvidia-nccl-cu12==2.26.2; platform_machine == "another"',
        'triton==3.3.1; python_version < "3.10"',
        'triton (==3.4.0) ; python_version >= "3.10"',
        "nvidia-old-cu12 (==8.9.2.26)",
        "nvidia-extra; extra == 'more'",
        "not a requirement !!",
    )
    assert interpreter.applicable(needs, "3.9.1") == (
        "nvidia-cublas-cu12==12.8.4.1",
        "triton==3.3.1",
        "nvidia-old-cu12==8.9.2.26",
    )
    assert "triton==3.4.0" in interpreter.applicable(needs, "3.12.4")


@posix
def test_the_compiler_that_torch_takes(tmp_path: Path) -> None:
    for name in ("g++", "clang++", "icpx"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": str(tmp_path)}
    assert interpreter.compiler(path, "linux") == str(tmp_path / "g++")
    assert interpreter.compiler(path, "darwin") == str(tmp_path / "clang++")
    assert interpreter.compiler({**path, "CXX": "icpx"}, "linux") == str(tmp_path / "icpx")
    assert interpreter.compiler({**path, "CXX": "missing"}, "linux") is None
    (tmp_path / "g++").unlink()
    assert interpreter.compiler(path, "linux") is None  # torch does not try clang++ by itself
    assert interpreter.compiler(path, "win32") is None
