"""Checks: one problem per file; the folders are the table.

`<kind>/<family>/<code>_<name>.py`: the kind says what is checked (`machine`, `job`, `ceilings`; the
folder's docstring says what its checks get). The family is the letters of the code. The name
(underscores for hyphens) is the check's id, which names the problem and reads well after "allow".
Any other file beside the checks is shared by several of them. A check module has

    CHECK = Check(code="ENV012", severity=Severity.WARNING, since="0.2.0")

    def check(machine: Machine) -> Iterator[Diagnosis]

`check` is pure: no file, no process, no clock. It yields nothing if a fact that it needs is None,
so that it claims nothing unknown. It may get any machine, even one with another system.
The module docstring is the page that `flatout explain CODE` prints, with the headings What it sees
/ Why it matters / Evidence / Cure / References; its first line states the problem in one sentence.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, ParamSpec, Protocol, cast

from flatout.nouns.finding import Cure, Severity

if TYPE_CHECKING:
    from flatout.nouns.ceiling import Benched
    from flatout.nouns.machine import Machine
    from flatout.nouns.profile import Profile

FOLDER = Path(__file__).parent
FILE = re.compile(r"([a-z]+\d{3})_(\w+)")
"""A check's file: its code and its name."""
Facts = ParamSpec("Facts")
"""The arguments of a check."""


@dataclass(frozen=True)
class Check:
    """A check's identity; its id is its file's name."""

    code: str
    severity: Severity
    """The severity of its findings, unless they give their own."""
    since: str
    hides: tuple[str, ...] = ()
    """Codes of mere consequences of this problem, left out if this one is found."""


@dataclass(frozen=True)
class Diagnosis:
    """What a check found: a Finding without the check's own name."""

    title: str
    evidence: str
    cure: Cure
    severity: Severity | None = None
    """The finding's own severity, or None for the check's."""
    where: str | None = None
    """file:line in the user's code."""
    boost: str | None = None
    """The boost that cures it without an edit."""
    saves_ms: float | None = None
    """The milliseconds a cure saves per step, or None if not predicted."""
    reason: str = ""
    """How that was computed, in numbers."""
    uncertainty: float | None = None
    """Share of `saves_ms` by which it may be off, or None for the check family's usual one."""
    most_ms: float | None = None
    """The time the cure concerns, the most it can save per step; None if unknown."""
    adds_host_ms: float = 0.0
    """The time that the cure adds to the host's own work in a step, if an accelerator trains."""
    covers: tuple[str, ...] = ()
    """file:line of all lines that it is about.

    Other checks' findings about operators there count the same time and say less of the cause.
    """
    needless: bool = False
    """These lines' work is not needed in each step.

    How they do it then does not matter, whatever another check predicts.
    """


class CheckModule(Protocol[Facts]):
    """What each check's file defines."""

    __name__: str
    __doc__: str | None
    CHECK: Check

    @property
    def check(self) -> Callable[Facts, Iterator[Diagnosis]]: ...


@dataclass(frozen=True)
class CheckFile:
    """The file of a check; its source is not read."""

    path: Path

    @property
    def code(self) -> str:
        """A code like KERN008."""
        return self.path.stem.partition("_")[0].upper()

    @property
    def id(self) -> str:
        """Like attention-by-hand."""
        return name_of(self.path.stem)


@dataclass(frozen=True)
class CheckKind(Generic[Facts]):
    """One kind of checks: a folder beside this file."""

    folder: str

    def files(self) -> list[CheckFile]:
        """The files of all its checks, by code."""
        paths = (FOLDER / self.folder).glob("*/*.py")
        return [CheckFile(path) for path in sorted(paths) if FILE.fullmatch(path.stem)]

    def load(self, check_id: str) -> CheckModule[Facts]:
        """The module of one check. Raises KeyError if none has that id."""
        for file in self.files():
            if file.id == check_id:
                return self._module(file)
        raise KeyError(check_id)

    def every(self) -> list[CheckModule[Facts]]:
        """The modules of all its checks, by code."""
        return [self._module(file) for file in self.files()]

    def _module(self, file: CheckFile) -> CheckModule[Facts]:
        parts = file.path.relative_to(FOLDER).with_suffix("").parts
        module = importlib.import_module(".".join(["flatout.diagnosing", *parts]))
        return cast("CheckModule[Facts]", module)


MACHINE: CheckKind[[Machine]] = CheckKind("machine")
JOB: CheckKind[[Profile]] = CheckKind("job")
CEILINGS: CheckKind[[Benched, Machine]] = CheckKind("ceilings")


def files() -> list[CheckFile]:
    """The files of all checks of all kinds, by code."""
    every = (*MACHINE.files(), *JOB.files(), *CEILINGS.files())
    return sorted(every, key=lambda file: file.code)


def find(text: str) -> CheckFile | None:
    """The file of a code or of a check's id, in any case, or None if there is none."""
    name = text.strip().lower().replace("_", "-")
    return next((file for file in files() if name in (file.code.lower(), file.id)), None)


def name_of(module_name: str) -> str:
    """The id of the check in that module: attention-by-hand of a.b.kern008_attention_by_hand."""
    return module_name.rpartition(".")[2].partition("_")[2].replace("_", "-")
