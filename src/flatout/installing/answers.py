"""The answers of `flatout env`: a choice, and the lines or the Dockerfile that install it."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from flatout.installing import docker, driver, pytorch, shell, system_packages
from flatout.installing.choice import Choice
from flatout.installing.target import Target
from flatout.nouns.errors import UserError

RDNA2 = ("gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036")
"""With HSA_OVERRIDE_GFX_VERSION these run the kernels of gfx1030, which the wheels have."""


@dataclass(frozen=True)
class Installation:
    """One Target, the choice for it, and the lines or the file that install it."""

    target: Target
    choice: Choice
    file: str
    """The file's name."""
    text: str
    commands: tuple[str, ...] = ()
    """Lines to run, in order; one that starts with # is a comment. Empty for a Dockerfile."""

    def document(self) -> dict[str, Any]:
        """Its part of the JSON document."""
        return {
            "target": dataclasses.asdict(self.target),
            "choice": dataclasses.asdict(self.choice),
            "commands": list(self.commands),
            "files": {self.file: self.text},
        }


def answer(what: str, target: Target, mirror: str | None = None) -> Installation:
    """The answer for install or docker: everything in one paste, down to the restart.

    Raises UserError if nothing fits.
    """
    if mirror is not None and not re.match(r"(https?|file)://\S+$|/\S+$", mirror):
        example = "for example --mirror https://mirror.example.org/whl"
        raise UserError(f"--mirror {mirror!r} is not an address", example)
    if what == "docker":
        text, choice = docker.file(target, mirror)
        return Installation(target, choice, "Dockerfile", text)
    choice = pytorch.choose(target)
    commands = pytorch.commands(target, mirror)
    if choice.vendor == "amd" and target.gfx in RDNA2:
        why = f"with this variable {target.gfx} runs the kernels of gfx1030, which the wheel has"
        value = system_packages.variable(target, "HSA_OVERRIDE_GFX_VERSION", "10.3.0")
        commands = (shell.why(why), *value, *commands)
    if choice.driver_needed is not None:
        before = driver.commands(target, choice.driver_needed)
        restart = (at for at, line in enumerate(before) if shell.is_restart(line))
        place = next(restart, len(before))
        commands = (*before[:place], *commands, *before[place:])
    reasons = (shell.why(reason) for reason in choice.why)
    name = "install.ps1" if shell.is_powershell(target) else "install.sh"
    return Installation(target, choice, name, "\n".join((*reasons, *commands)) + "\n", commands)
