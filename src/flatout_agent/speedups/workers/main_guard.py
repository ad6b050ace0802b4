"""Whether the main script can be imported again without training again.

If Python starts workers by spawn or forkserver, each worker imports the main script. Code that is
not inside `if __name__ == "__main__":` then runs once more in every worker.
"""

from __future__ import annotations

import ast
import sys
import threading
from pathlib import Path
from types import FrameType


def main_guard() -> bool | None:
    """Whether the main script's running code is guarded, or None if main is not a script file.

    While the script runs, only the line that it has reached counts: a guard elsewhere in the file
    does not help. Once it is no longer running, any guard counts.
    """
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not path:
        return None
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    guarded = guarded_lines(tree)
    line = _line_of_main()
    if line is None:
        return bool(guarded)
    return any(line in lines for lines in guarded)


def guarded_lines(tree: ast.Module) -> list[range]:
    """The line ranges that only run when the file is the main script."""
    ranges: list[range] = []
    for statement in _module_level(tree.body):
        if isinstance(statement, ast.If):
            body = statement.body if _is_main(statement.test) else []
            if _is_not_main(statement.test):
                body = statement.orelse
            if body:
                ranges.append(range(body[0].lineno, (body[-1].end_lineno or 0) + 1))
    return ranges


def _module_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements that run when the module is executed; functions and classes are not entered."""
    statements = []
    for statement in body:
        statements.append(statement)
        for field in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(statement, ast.If | ast.Try | ast.With | ast.For | ast.While):
                for inner in getattr(statement, field, []):
                    within = inner.body if isinstance(inner, ast.ExceptHandler) else [inner]
                    statements += _module_level(within)
    return statements


def _is_main(test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_is_main(value) for value in test.values)
    return _compares_name(test, ast.Eq)


def _is_not_main(test: ast.expr) -> bool:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _compares_name(test.operand, ast.Eq)
    return _compares_name(test, ast.NotEq)


def _compares_name(test: ast.expr, operator: type[ast.cmpop]) -> bool:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    sides = [test.left, test.comparators[0]]
    name = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    main = any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)
    return isinstance(test.ops[0], operator) and name and main


def _line_of_main() -> int | None:
    """The line that the main script has reached, or None if it is not running."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            names = vars(sys.modules["__main__"])
            if frame.f_globals is names:
                return frame.f_lineno
        frame = frame.f_back
    return None
