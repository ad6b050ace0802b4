"""Everything for a Target in one paste: driver, PyTorch, variables, the check, the restart."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.installing import driver, pytorch, shell, system_packages
from flatout.installing.choice import Choice
from flatout.installing.target import Target

RESTARTS = ("reboot", "sudo reboot", "Restart-Computer", "Restart-Computer -Confirm")
RDNA2 = ("gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036")
"""With HSA_OVERRIDE_GFX_VERSION these run the kernels of gfx1030, which the wheels have."""


@dataclass(frozen=True)
class Script:
    """Lines to paste, and the reasons for them."""

    version: str
    build: str
    why: tuple[str, ...]
    commands: tuple[str, ...]
    """In order; a line that starts with # is a comment."""
    driver_needed: str | None = None

    @property
    def text(self) -> str:
        """The reasons as comments above the lines."""
        reasons = (shell.why(reason) for reason in self.why)
        return "\n".join((*reasons, *self.commands)) + "\n"


def pytorch_script(target: Target, mirror: str | None = None) -> Script:
    """The script that installs PyTorch on the Target, with a driver if one is needed."""
    choice = pytorch.choose(target)
    lines = (*_variables(target, choice), *pytorch.commands(target, mirror))
    return Script(
        version=choice.version,
        build=choice.build,
        why=choice.why,
        commands=_with_driver(target, choice.driver_needed, lines),
        driver_needed=choice.driver_needed,
    )


def _with_driver(target: Target, version: str | None, lines: tuple[str, ...]) -> tuple[str, ...]:
    """The driver's lines before `lines`, and its restart after them."""
    if version is None:
        return lines
    driver_lines = driver.commands(target, version)
    restart_at = next(
        (index for index, line in enumerate(driver_lines) if is_restart(line)), len(driver_lines)
    )
    return (*driver_lines[:restart_at], *lines, *driver_lines[restart_at:])


def is_restart(line: str) -> bool:
    """Whether the line restarts the machine."""
    return line.strip() in RESTARTS


def _variables(target: Target, choice: Choice) -> tuple[str, ...]:
    """Variables without which this build does not run on this GPU."""
    if choice.vendor != "amd" or target.gfx not in RDNA2:
        return ()
    why = f"with this variable {target.gfx} runs the kernels of gfx1030, which the wheel has"
    value = system_packages.variable(target, "HSA_OVERRIDE_GFX_VERSION", "10.3.0")
    return (shell.why(why), *value)
