"""A Python script as syntax and as text, so that single places of it can be changed.

`ast` counts columns in bytes of UTF-8, and so do the places here.
"""

from __future__ import annotations

import ast
import builtins
import io
import tokenize
from collections.abc import Iterator, Sequence

OF_PYTHON = {"torch", *dir(builtins)}
BLANK = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER)


class UnclearError(Exception):
    """Why a script cannot be changed: for people, without a full stop."""


class ScriptText:
    """One script, and what is to be replaced in it."""

    def __init__(self, text: str) -> None:
        """Raises UnclearError where the text is not Python."""
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError):
            raise UnclearError("flatout cannot read the script's Python") from None
        self._bytes = text.encode()
        self._lines = self._bytes.splitlines(keepends=True)
        self._edits: list[tuple[int, int, str]] = []
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self._imported: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for item in node.names:
                    whole = item.name if item.asname else item.name.partition(".")[0]
                    self._imported[item.asname or whole] = whole
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for item in node.names:
                    self._imported[item.asname or item.name] = f"{node.module}.{item.name}"

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node begins and ends."""
        end_line, end_column = node.end_lineno or 0, node.end_col_offset or 0
        return (
            self._line(node.lineno) + node.col_offset,
            self._line(end_line) + end_column,
        )

    def _line(self, number: int) -> int:
        """Where a line, counted from 1, begins."""
        return sum(map(len, self._lines[: number - 1]))

    def source(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node; its first line begins at column 0."""
        start, end = self.span(node)
        return self._bytes[start:end].decode()

    def name(self, node: ast.AST) -> str:
        """What an expression such as `nn.Linear` was imported as: torch.nn.Linear; else ""."""
        if isinstance(node, ast.Attribute):
            owner = self.name(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return self._imported.get(node.id, "") if isinstance(node, ast.Name) else ""

    def calls(self) -> Iterator[ast.Call]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds an expression."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def scope(self, node: ast.AST) -> ast.AST:
        """The function that holds a node, or the whole script."""
        while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            node = self.parents[node]
        return node

    def indent(self, statement: ast.stmt) -> str:
        """What stands before a statement. Raises UnclearError where others share its lines."""
        before = self._lines[statement.lineno - 1][: statement.col_offset].decode()
        last = self._lines[(statement.end_lineno or 0) - 1]
        after = last[statement.end_col_offset :].decode().strip()
        if before.strip() or (after and not after.startswith("#")):
            raise UnclearError(f"line {statement.lineno} holds more than one statement")
        return before

    def replace(self, start: int, end: int, text: str) -> None:
        self._edits.append((start, end, text))

    def add_before(self, statement: ast.stmt, lines: Sequence[str]) -> None:
        """Put lines before a statement, as far to the right. Raises what `indent` does."""
        indent = self.indent(statement)
        place = self._line(statement.lineno)
        self.replace(place, place, "".join(f"{indent}{line}".rstrip() + "\n" for line in lines))

    def add_after_imports(self, lines: Sequence[str]) -> None:
        """Put lines behind the first imports, and `import torch` where they do not have it."""
        place, has_torch = 0, False
        for number, node in enumerate(self.tree.body):
            if isinstance(node, ast.Import):
                has_torch |= any(item.name == "torch" and not item.asname for item in node.names)
            elif not isinstance(node, ast.ImportFrom) and (
                number or not isinstance(node, ast.Expr)
            ):
                break
            place = self._line((node.end_lineno or 0) + 1)
        lines = [*([] if has_torch else ["import torch"]), *([""] if lines else []), *lines]
        if lines:
            self.replace(place, place, "\n".join(lines) + "\n")

    def append_arguments(self, call: ast.Call, new: str) -> None:
        """Put arguments behind a call's last one, on a line of their own if each has its own."""
        start = self.span(call)[0]
        source = self.source(call)
        rows = source.splitlines(keepends=True)
        read = tokenize.generate_tokens(io.StringIO(f"({source})").readline)
        last = [token for token in read if token.type not in BLANK][-3]
        row, column = last.end  # of the token before the call's parenthesis; rows from 1
        column -= row == 1  # the parenthesis put around all of it
        place = start + len(("".join(rows[: row - 1]) + rows[row - 1][:column]).encode())
        if last.string == "," and row > 1 and not rows[row - 1][column:].strip():
            margin = rows[row - 1][: len(rows[row - 1]) - len(rows[row - 1].lstrip())]
            new = f"\n{margin}{new},"
        elif last.string == ",":
            new = f" {new},"
        elif last.string != "(":
            new = f", {new}"
        self.replace(place, place, new)

    def edited(self) -> str:
        """The text with all replacements. Raises UnclearError where that is not Python."""
        edited = self._bytes
        for start, end, text in sorted(self._edits, reverse=True):
            edited = edited[:start] + text.encode() + edited[end:]
        try:
            ast.parse(edited)
        except SyntaxError:
            raise UnclearError("there is no place for it between the script's lines") from None
        return edited.decode()


def made(tree: ast.AST) -> set[str]:
    """Names that the code gives a value, parameters, functions and imports included."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {item.asname or item.name.partition(".")[0] for item in node.names}
    return names


def free(tree: ast.AST) -> list[str]:
    """Names that the code uses and does not make, but for torch and Python's own."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    used = dict.fromkeys(name.id for name in names if isinstance(name.ctx, ast.Load))
    own = made(tree) | OF_PYTHON
    return [name for name in used if name not in own]
