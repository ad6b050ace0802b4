"""The page of a finding code, read from the source of its check or rule: the module's docstring.

Importing the module would also import everything it needs to diagnose.
"""

from __future__ import annotations

import ast
from pathlib import Path

from flatout.nouns.finding import Severity
from flatout.nouns.page import Page


def read(path: Path, code: str, id_: str, constant: str) -> Page:
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
