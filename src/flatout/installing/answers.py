"""The answers of `flatout env`: a choice, and the lines or files that install it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flatout.installing import conda_packages, docker, pytorch, script, shell
from flatout.installing.choice import Choice
from flatout.installing.script import Script
from flatout.installing.target import Target
from flatout.knowledge.compat import pytorch as releases
from flatout.nouns.errors import UserError

CONDA_NAME = "training"


@dataclass(frozen=True)
class Installation:
    """One Target, the choice for it, and the lines or files that install it."""

    target: Target
    version: str
    build: str
    why: tuple[str, ...]
    driver_needed: str | None
    commands: tuple[str, ...]
    """Lines to run; empty if files are the answer."""
    files: dict[str, str]
    """Name -> text."""

    def document(self) -> dict[str, Any]:
        """Its part of the JSON document."""
        return {
            "target": dataclasses.asdict(self.target),
            "choice": {
                "version": self.version,
                "build": self.build,
                "why": list(self.why),
                "driver_needed": self.driver_needed,
            },
            "commands": list(self.commands),
            "files": self.files,
        }


def answer(what: str, target: Target, mirror: str | None = None) -> Installation:
    """The answer for install, docker or conda. Raises UserError if nothing fits."""
    if mirror is not None and not re.match(r"(https?|file)://\S+$|/\S+$", mirror):
        example = "for example --mirror https://mirror.example.org/whl"
        raise UserError(f"--mirror {mirror!r} is not an address", example)
    if what == "docker":
        docker_files = docker.files(target, mirror)
        return _choice_answer(target, docker_files.choice, docker_files.by_name())
    if what == "conda":
        text, choice = conda_environment(target, mirror)
        return _choice_answer(target, choice, {"environment.yml": text})
    return _script_answer(target, script.pytorch_script(target, mirror))


def shown(files: Mapping[str, str]) -> str:
    """All files in one text; several with their names above them."""
    if len(files) == 1:
        return next(iter(files.values()))
    return "\n".join(f"{shell.remark(f'---- {name}')}\n{text}" for name, text in files.items())


def _choice_answer(target: Target, choice: Choice, files: dict[str, str]) -> Installation:
    return Installation(
        target, choice.version, choice.build, choice.why, choice.driver_needed, (), files
    )


def _script_answer(target: Target, script_lines: Script) -> Installation:
    name = "install.ps1" if shell.is_powershell(target) else "install.sh"
    return Installation(
        target,
        script_lines.version,
        script_lines.build,
        script_lines.why,
        script_lines.driver_needed,
        script_lines.commands,
        {name: script_lines.text},
    )


def conda_environment(target: Target, mirror: str | None = None) -> tuple[str, Choice]:
    """The file's text and its choice. Raises UserError if no build fits."""
    target = replace(target, manager="conda", free_threaded=False)
    python = target.python or pytorch.python_for(pytorch.choose(target))
    target = replace(target, python=".".join(python.split(".")[:2]))
    choice = pytorch.choose(target)
    lines = [
        *(shell.why(reason) for reason in choice.why),
        *_conda_needs(target, choice),
        f"name: {CONDA_NAME}",
        "channels:",
        "  - conda-forge",
        "  - nodefaults",
        "dependencies:",
        f'  - "python={target.python}"',
        *_conda_packages(target, choice, mirror),
    ]
    return "\n".join(lines) + "\n", choice


def _conda_needs(target: Target, choice: Choice) -> list[str]:
    create = "conda env create -f environment.yml"
    if choice.cuda and target.driver is None:
        # conda refuses GPU builds if it finds no driver
        create = f"CONDA_OVERRIDE_CUDA={choice.cuda} {create}"
    lines = [
        shell.remark(f"create: {create}"),
        shell.remark(f"then: conda activate {CONDA_NAME}"),
    ]
    if choice.driver_needed:
        text = f"driver {choice.driver_needed} or newer is needed: flatout env install"
        lines.append(shell.remark(text))
    return lines


def _conda_packages(target: Target, choice: Choice, mirror: str | None) -> list[str]:
    if choice.build == "cpu" or choice.cuda:
        return [f'  - "{name}"' for name in conda_packages.names(target, choice)]
    index = releases.index_url(choice.build, mirror)
    return [
        shell.why(f"conda-forge has no {choice.build} build of PyTorch; pip installs it"),
        "  - pip",
        "  - pip:",
        f'      - "--extra-index-url {index}"',
        *(f'      - "{name}"' for name in _with_build(choice)),
    ]


def _with_build(choice: Choice) -> list[str]:
    """Requirements with the build in the version: the index has each release for several GPUs."""
    first, *rest = pytorch.requirements(choice)
    return [f"{first}+{choice.build}", *rest]
