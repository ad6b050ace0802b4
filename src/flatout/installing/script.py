"""Everything for a Target in one paste: driver, PyTorch, variables, the check, the restart."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.installing import driver, pytorch, shell, system_packages
from flatout.installing.choice import Choice
from flatout.installing.target import Target

RESTARTS = ("reboot", "sudo reboot", "Restart-Computer", "Restart-Computer -Confirm")
RDNA2 = ("gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036")
"""They run the kernels of gfx1030, for which the wheels are built, when told so."""


@dataclass(frozen=True)
class Script:
    """Lines to paste, and why these."""

    version: str
    build: str
    why: tuple[str, ...]
    commands: tuple[str, ...]
    """In order; a line that starts with # is a remark."""
    driver_needed: str | None = None

    @property
    def text(self) -> str:
        """The reasons as remarks above the lines."""
        reasons = (shell.remark(f"why: {reason}") for reason in self.why)
        return "\n".join((*reasons, *self.commands)) + "\n"


def pytorch_script(target: Target, mirror: str | None = None) -> Script:
    """What installs PyTorch on the Target, with its driver where one is needed."""
    choice = pytorch.choose(target)
    lines = (*_variables(target, choice), *pytorch.commands(target, mirror))
    return Script(
        version=choice.version,
        build=choice.build,
        why=choice.why,
        commands=with_driver(target, choice.driver_needed, lines),
        driver_needed=choice.driver_needed,
    )


def with_driver(target: Target, needed: str | None, lines: tuple[str, ...]) -> tuple[str, ...]:
    """The driver's lines before `lines`, and its restart after them."""
    if needed is None:
        return lines
    own = driver.commands(target, needed)
    first = next((index for index, line in enumerate(own) if is_restart(line)), len(own))
    return (*own[:first], *lines, *own[first:])


def is_restart(line: str) -> bool:
    """Whether the line restarts the machine."""
    return line.strip() in RESTARTS


def _variables(target: Target, choice: Choice) -> tuple[str, ...]:
    """Those without which this build does not run on this GPU."""
    if choice.vendor != "amd" or target.gfx not in RDNA2:
        return ()
    why = f"why: {target.gfx} runs the kernels of gfx1030, which the wheel holds, when told so"
    value = system_packages.variable(target, "HSA_OVERRIDE_GFX_VERSION", "10.3.0")
    return (shell.remark(why), *value)
