"""The page of each finding code: what its check says of itself, as Markdown."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass
from pathlib import Path

from flatout.diagnosing import ceiling_checks, checks, profile_checks
from flatout.diagnosing.ceiling_checks import CeilingCheckModule
from flatout.diagnosing.checks import CheckModule
from flatout.diagnosing.profile_checks import ProfileCheckModule

AnyCheck = CheckModule | ProfileCheckModule | CeilingCheckModule


@dataclass(frozen=True)
class Page:
    """One code's page."""

    code: str
    id: str
    severity: str
    since: str
    title: str
    """The problem in one sentence, without the full stop."""
    body: str
    """What it sees, why it matters, evidence, cure, references: Markdown."""

    @property
    def markdown(self) -> str:
        """The whole page."""
        facts = f"- Severity: {self.severity}\n- Name: `{self.id}`\n- Since {self.since}"
        return f"# {self.code}: {self.title}\n\n{facts}\n\n{self.body}\n"


def every() -> tuple[Page, ...]:
    """All pages, by code."""
    machine = [checks.load(name) for name in checks.names()]
    job = [profile_checks.load(name) for name in profile_checks.names()]
    ceilings = [ceiling_checks.load(name) for name in ceiling_checks.names()]
    modules: list[AnyCheck] = [*machine, *job, *ceilings]
    return tuple(sorted(map(_page, modules), key=lambda page: page.code))


def find(wanted: str) -> Page | None:
    """The page of a code or of a check's id, in any case; None: there is none."""
    name = wanted.strip().lower().replace("_", "-")
    for package in (checks, profile_checks, ceiling_checks):
        for check in package.names():
            if name == check or _is_coded(package.__path__[0], check, name):
                return _page(package.load(check))
    return None


def _is_coded(folder: str, check: str, code: str) -> bool:
    """Whether the check's file gives that code: read, since importing them all takes long."""
    source = Path(folder, f"{check.replace('-', '_')}.py").read_text(encoding="utf-8")
    return f'code="{code.upper()}"' in source


def nearest(wanted: str) -> tuple[str, ...]:
    """Codes and ids most like an unknown one, best first."""
    word = wanted.strip().lower().replace("_", "-")
    known = [name for page in every() for name in (page.code.lower(), page.id)]
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    close = close or [name for name in known if word and word in name][:3]
    return tuple(name.upper() if any(c.isdecimal() for c in name) else name for name in close)


def _page(module: AnyCheck) -> Page:
    title, _, body = inspect.cleandoc(module.__doc__ or "").partition("\n")
    return Page(
        code=module.CHECK.code,
        id=module.__name__.rpartition(".")[2].replace("_", "-"),
        severity=module.CHECK.severity.value,
        since=module.CHECK.since,
        title=title.removesuffix("."),
        body=body.strip(),
    )
