"""The user's interpreter: it is started on `flatout_programs/facts.py` and tells of itself.

It may hang or crash at any point, as a broken torch does; then what it told before is kept.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement

from flatout.nouns.decoding import decode
from flatout.nouns.interpreter import Interpreter, Torch
from flatout.probing import conversation
from flatout.probing.conversation import Conversation

QUICK_S = 1.5
DEEP_S = 180.0
"""A first torch.compile on a busy machine takes its time."""
ENDING_S = 0.1
"""Of the time that is given, for ending what is late: whoever asks may not wait a moment longer."""
OLDEST = (3, 7)
VERSION = "import sys; sys.stdout.write('%d.%d.%d' % sys.version_info[:3])"
APPLE_TOOLS = ("/Library/Developer/CommandLineTools", "/Applications/Xcode.app")
"""Where there is neither, /usr/bin/clang++ only offers to install one."""


def interpreter(executable: str, deep: bool = False, limit_s: float | None = None) -> Interpreter:
    """What the interpreter tells of itself within `limit_s`; deep: it also tries the device."""
    return start(executable, deep).answer(limit_s or (DEEP_S if deep else QUICK_S))


def start(
    executable: str, deep: bool = False, environ: Mapping[str, str] | None = None
) -> Question:
    """Ask now, and collect the answer later: other facts can be read meanwhile."""
    return Question(executable, deep, os.environ if environ is None else environ)


class Question:
    """An interpreter that is telling its facts. `answer` must be called; it ends the program."""

    def __init__(self, executable: str, deep: bool, environ: Mapping[str, str]) -> None:
        self._executable, self._environ = executable, environ
        self._resources = ExitStack()
        self._talk: Conversation | None = None
        self._refused = ""
        try:
            command = [executable, str(conversation.program("facts"))]
            scratch = self._scratch() if deep else None
            env = conversation.environment(environ, scratch)
            talk = Conversation([*command, *(["--deep"] if deep else [])], env)
            self._talk = self._resources.enter_context(talk)
        except OSError as error:
            self._refused = f"cannot be started: {error.strerror or error}"

    def answer(self, limit_s: float) -> Interpreter:
        """What it has told after at most `limit_s` from now; then all its processes are ended."""
        with self._resources:
            if self._talk is None:
                return Interpreter(executable=self._executable, error=self._refused)
            deadline = time.monotonic() + max(limit_s - ENDING_S, limit_s / 2)
            facts: dict[str, Any] = {}
            while "done" not in facts and (answer := self._talk.answer(deadline)) is not None:
                add(facts, answer)
            late = f"no answer within {limit_s:.3g} s" if self._talk.running else ""
            ending = "" if "done" in facts else late or self._talk.how_it_ended()
        told = _told(facts)
        if told is None or told.version is None:
            return self._mute(ending, bool(late))
        python = dataclasses.replace(
            told,
            executable=told.executable or self._executable,
            compiler=compiler(self._environ),
            compiler_searched=True,
        )
        return interrupted(python, facts, ending, bool(late)) if ending else python

    def _mute(self, ending: str, late: bool) -> Interpreter:
        """It told nothing: too old, hanging at its start, or no Python at all."""
        question = [self._executable, "-c", VERSION]
        version = None if late else conversation.said(question, self._environ, 1.0)
        parts = tuple(int(part) for part in (version or "").split(".") if part.isdecimal())
        if len(parts) != 3:
            return Interpreter(executable=self._executable, error=ending or "told nothing")
        oldest = ".".join(map(str, OLDEST))
        old = f"Python {version} is too old to be asked, the oldest is {oldest}"
        error = old if parts < OLDEST else ending or "told nothing"
        return Interpreter(executable=self._executable, version=version, error=error)

    def _scratch(self) -> str:
        folder = tempfile.TemporaryDirectory(prefix="flatout-", ignore_cleanup_errors=True)
        return self._resources.enter_context(folder)


def add(facts: dict[str, Any], answer: dict[str, Any]) -> None:
    """Complete the facts by what is told later."""
    for name, value in answer.items():
        if isinstance(known := facts.get(name), dict) and isinstance(value, dict):
            known.update(value)
        else:
            facts[name] = value


def _told(facts: dict[str, Any]) -> Interpreter | None:
    """The noun; a value of the wrong type is no fact."""
    told = decode(Interpreter, facts)
    if told is None or told.torch is None:
        return told
    needed = applicable(told.torch.requires, told.version)
    return dataclasses.replace(told, torch=dataclasses.replace(told.torch, requires=needed))


def applicable(requirements: Iterable[str], version: str | None) -> tuple[str, ...]:
    """Those that hold on this system and Python, without their conditions."""
    here = {key: str(value) for key, value in default_environment().items()}
    if version is not None:
        here.update(python_full_version=version, python_version=version.rpartition(".")[0])
    found = []
    for text in requirements:
        try:
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({**here, "extra": ""}):
                found.append(f"{wanted.name}{wanted.specifier}")
        except (InvalidRequirement, ValueError, KeyError):
            continue
    return tuple(found)


def interrupted(python: Interpreter, facts: dict[str, Any], ending: str, late: bool) -> Interpreter:
    """Lay the ending at the door of the step that it fell into; being late alone proves nothing."""
    torch = python.torch
    if torch is None:
        return python if late else dataclasses.replace(python, error=ending)
    return dataclasses.replace(python, torch=_blamed(torch, facts["torch"], ending, late))


def _blamed(torch: Torch, told: dict[str, Any], ending: str, late: bool) -> Torch:
    if torch.imported is None:
        changes = {} if late else {"imported": False, "import_error": ending}
    elif torch.imported and "cuda_available" not in told:
        changes = {"cuda_error": f"torch was looking for devices: {ending}"}
    elif torch.imported and "compile_works" not in told and not late:
        changes = {"compile_works": False, "compile_error": ending}
    elif torch.imported and "compile_works" not in told:
        changes = {"compile_error": ending}
    else:
        changes = {}
    return dataclasses.replace(torch, **changes)  # type: ignore[arg-type]


def compiler(environ: Mapping[str, str], system: str = sys.platform) -> str | None:
    """The C++ compiler that torch.compile takes: it looks for no other than this one."""
    usual = {"win32": "cl", "darwin": "clang++"}.get(system, "g++")
    found = shutil.which(environ.get("CXX", usual), path=environ.get("PATH", os.defpath))
    if system == "darwin" and found == "/usr/bin/clang++":
        return found if any(Path(folder).is_dir() for folder in APPLE_TOOLS) else None
    return found
