"""The user's interpreter, in which `flatout_programs/facts.py` reports facts about it.

It may hang or crash at any point, as with a broken torch; the facts reported until then are kept.
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
from flatout.nouns.interpreter import Interpreter
from flatout.probing import conversation
from flatout.probing.conversation import Conversation

QUICK_S = 1.5
DEEP_S = 180.0
"""A first torch.compile on a busy machine is slow."""
ENDING_S = 0.1
"""Part of the time limit for ending a late program: the caller must not wait longer."""
OLDEST = (3, 7)
VERSION = "import sys; sys.stdout.write('%d.%d.%d' % sys.version_info[:3])"
APPLE_TOOLS = ("/Library/Developer/CommandLineTools", "/Applications/Xcode.app")
"""With neither of these, /usr/bin/clang++ only offers to install a compiler."""


def interpreter(executable: str, deep: bool = False, limit_s: float | None = None) -> Interpreter:
    """The facts reported within `limit_s`. deep: the interpreter also tries the device."""
    return start(executable, deep).answer(limit_s or (DEEP_S if deep else QUICK_S))


def start(
    executable: str, deep: bool = False, environ: Mapping[str, str] | None = None
) -> Question:
    """Start the program and collect the answer later; other facts can be read meanwhile."""
    return Question(executable, deep, os.environ if environ is None else environ)


class Question:
    """An interpreter that is reporting its facts. `answer` must be called; it ends the program."""

    def __init__(self, executable: str, deep: bool, environ: Mapping[str, str]) -> None:
        self._executable, self._environ = executable, environ
        self._resources = ExitStack()
        self._talk: Conversation | None = None
        self._start_error = ""
        try:
            command = [executable, str(conversation.program("facts"))]
            scratch = None
            if deep:
                folder = tempfile.TemporaryDirectory(prefix="flatout-", ignore_cleanup_errors=True)
                scratch = self._resources.enter_context(folder)
            env = conversation.environment(environ, scratch)
            talk = Conversation([*command, *(["--deep"] if deep else [])], env)
            self._talk = self._resources.enter_context(talk)
        except OSError as error:
            self._start_error = f"cannot be started: {error.strerror or error}"

    def answer(self, limit_s: float) -> Interpreter:
        """The facts reported within `limit_s` from now. Ends all its processes."""
        with self._resources:
            if self._talk is None:
                return Interpreter(executable=self._executable, error=self._start_error)
            deadline = time.monotonic() + max(limit_s - ENDING_S, limit_s / 2)
            facts: dict[str, Any] = {}
            while "done" not in facts and (answer := self._talk.answer(deadline)) is not None:
                add(facts, answer)
            late_error = f"no answer within {limit_s:.3g} s" if self._talk.running else ""
            ending = "" if "done" in facts else late_error or self._talk.how_it_ended()
        reported = _decoded(facts)
        if reported is None or reported.version is None:
            return self._without_facts(ending, bool(late_error))
        python = dataclasses.replace(
            reported,
            executable=reported.executable or self._executable,
            compiler=compiler(self._environ),
            compiler_searched=True,
        )
        return interrupted(python, facts, ending, bool(late_error)) if ending else python

    def _without_facts(self, ending: str, late: bool) -> Interpreter:
        """For one that reported nothing: too old, hanging at its start, or no Python at all."""
        question = [self._executable, "-c", VERSION]
        version = None if late else conversation.output(question, self._environ, 1.0)
        parts = tuple(int(part) for part in (version or "").split(".") if part.isdecimal())
        if len(parts) != 3:
            error = ending or "reported nothing"
            return Interpreter(
                executable=self._executable, error=error, timed_out=late and bool(ending)
            )
        oldest = ".".join(map(str, OLDEST))
        old = f"Python {version} is too old to be queried; the oldest is {oldest}"
        error = old if parts < OLDEST else ending or "reported nothing"
        return Interpreter(executable=self._executable, version=version, error=error)


def add(facts: dict[str, Any], answer: dict[str, Any]) -> None:
    """Merge a later answer into the facts."""
    for name, value in answer.items():
        if isinstance(value_before := facts.get(name), dict) and isinstance(value, dict):
            value_before.update(value)
        else:
            facts[name] = value


def _decoded(facts: dict[str, Any]) -> Interpreter | None:
    """The facts as an Interpreter; values of the wrong type are dropped."""
    reported = decode(Interpreter, facts)
    if reported is None or reported.torch is None:
        return reported
    requirements = applicable(reported.torch.requires, reported.version)
    return dataclasses.replace(
        reported, torch=dataclasses.replace(reported.torch, requires=requirements)
    )


def applicable(requirements: Iterable[str], version: str | None) -> tuple[str, ...]:
    """The requirements that apply to this system and Python, without their markers."""
    markers = {key: str(value) for key, value in default_environment().items()}
    if version is not None:
        markers.update(python_full_version=version, python_version=version.rpartition(".")[0])
    applicable_requirements = []
    for text in requirements:
        try:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({**markers, "extra": ""}):
                applicable_requirements.append(f"{requirement.name}{requirement.specifier}")
        except (InvalidRequirement, ValueError, KeyError):
            continue
    return tuple(applicable_requirements)


def interrupted(python: Interpreter, facts: dict[str, Any], ending: str, late: bool) -> Interpreter:
    """Attribute the ending to the step in which it came; lateness alone proves nothing."""
    torch = python.torch
    if torch is None:
        return python if late else dataclasses.replace(python, error=ending)
    if torch.imported is None:
        changes = {} if late else {"imported": False, "import_error": ending}
    elif torch.imported and "cuda_available" not in facts["torch"]:
        changes = {"cuda_error": f"torch was looking for devices: {ending}"}
    elif torch.imported and "compile_works" not in facts["torch"] and not late:
        changes = {"compile_works": False, "compile_error": ending}
    elif torch.imported and "compile_works" not in facts["torch"]:
        changes = {"compile_error": ending}
    else:
        changes = {}
    torch = dataclasses.replace(torch, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(python, torch=torch)


def compiler(environ: Mapping[str, str], system: str = sys.platform) -> str | None:
    """The C++ compiler that torch.compile uses; it looks for no other."""
    default = {"win32": "cl", "darwin": "clang++"}.get(system, "g++")
    path = shutil.which(environ.get("CXX", default), path=environ.get("PATH", os.defpath))
    if system == "darwin" and path == "/usr/bin/clang++":
        return path if any(Path(folder).is_dir() for folder in APPLE_TOOLS) else None
    return path
