"""Page: what a check says about itself, for people who look up its code.

It is read from the source of the check or rule, as the module's docstring: importing the module
would also import everything it needs to diagnose.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from flatout.nouns.finding import Severity


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


def read_page(path: Path, code: str, id_: str, constant: str) -> Page:
    """The page of the module at `path`. constant: the name of its identity, CHECK or RULE."""
    source = ast.parse(path.read_text(encoding="utf-8"))
    title, _, body = (ast.get_docstring(source) or "").partition("\n")
    severity, since = _identity(source, constant)
    return Page(
        code=code,
        id=id_,
        severity=severity.value,
        since=since,
        title=title.removesuffix("."),
        body=body.strip(),
    )


def _identity(source: ast.Module, constant: str) -> tuple[Severity, str]:
    """Severity and version in `CHECK = Check(code=..., severity=Severity.ERROR, since="0.2.0")`."""
    (call,) = (
        node.value
        for node in source.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == constant
    )
    assert isinstance(call, ast.Call)
    values = {argument.arg: argument.value for argument in call.keywords}
    severity = ast.unparse(values["severity"]).removeprefix("Severity.")
    return Severity[severity], ast.literal_eval(values["since"])
