"""Lines of the user's own files that switch on costly settings, found in their source."""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from flatout_agent.watch import places

MOST_FILES = 200
MOST_BYTES = 1 << 20
ANOMALY = ("set_detect_anomaly", "detect_anomaly")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
AFFINITY = ("sched_setaffinity", "cpu_affinity")
WIDE = ("torch.float64", "torch.double", "'float64'", "'double'")


def anomaly_line() -> str | None:
    """file:line that switches anomaly detection on, or None if no such call is found."""
    return _line(_switches_anomaly)


def double_line(default: bool) -> str | None:
    """file:line that turns a model to float64.

    default: look for torch's default dtype instead. None if no such call, or several, are found.
    """
    if default:
        return _line(_widens_default)
    lines = list(_lines(_widens_model)) or list(_lines(_takes_dtype))
    return lines[0] if len(lines) == 1 else None


def threads_line(threads: int) -> str | None:
    """file:line that may have set this number of compute threads, or None if none is found."""
    return _line(lambda call: _sets_threads(call, threads)) or _assignment(
        THREAD_VARIABLES, str(threads)
    )


def checkpointing_line() -> str | None:
    """file:line that switches on a library's activation checkpointing, or None if none is found."""
    return _line(_checkpoints)


def tracing_line() -> str | None:
    """file:line that starts tracemalloc or sets a trace function, or None if none is found."""
    return _line(_traces)


def affinity_line() -> str | None:
    """file:line that binds the process to some cores, or None if none is found."""
    return _line(lambda call: _called(call) in AFFINITY)


def _line(wanted: Callable[[ast.Call], bool]) -> str | None:
    return next(_lines(wanted), None)


def _lines(wanted: Callable[[ast.Call], bool]) -> Iterator[str]:
    for name, path in user_files():
        tree = parsed(path)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Call) and wanted(node):
                yield f"{name}:{node.lineno}"


def user_files() -> list[tuple[str, str]]:
    """The user's own files that are loaded, with the name that reports use; the main one first."""
    files: dict[str, str] = {}
    main = sys.modules.get("__main__")
    for module in (main, *list(sys.modules.values())):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py") or not places.is_own(path):
            continue
        if len(files) < MOST_FILES:
            files.setdefault(os.path.abspath(path), places.display(path))  # noqa: PTH100
    return [(name, path) for path, name in files.items()]


@functools.lru_cache(maxsize=MOST_FILES)
def parsed(path: str) -> ast.Module | None:
    """The syntax tree of a file, or None if it cannot be read or is too large."""
    try:
        if os.path.getsize(path) > MOST_BYTES:  # noqa: PTH202
            return None
        with open(path, "rb") as file:  # noqa: PTH123
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _assignment(variables: Sequence[str], text: str) -> str | None:
    """file:line that sets one of these variables to that value, or to a computed one."""
    for name, path in user_files():
        tree = parsed(path)
        for node in ast.walk(tree) if tree is not None else ():
            targets = node.targets if isinstance(node, ast.Assign) else ()
            if isinstance(node, ast.Assign) and not _may_be(node.value, text):
                continue
            for target in targets:
                key = target.slice if isinstance(target, ast.Subscript) else None
                if isinstance(key, ast.Constant) and key.value in variables:
                    return f"{name}:{target.lineno}"
    return None


def _may_be(value: ast.expr, text: str) -> bool:
    """Whether an expression is this value or a computed one."""
    return not isinstance(value, ast.Constant) or str(value.value) == text


def _sets_threads(call: ast.Call, threads: int) -> bool:
    names = [value.value for value in call.args[:1] if isinstance(value, ast.Constant)]
    if call.args and not _may_be(call.args[-1], str(threads)):
        return False
    sets_variable = _called(call) in ("setdefault", "putenv")
    return _called(call) == "set_num_threads" or (
        sets_variable and bool(set(names) & set(THREAD_VARIABLES))
    )


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", "") or getattr(call.func, "id", ""))


def _switches_anomaly(call: ast.Call) -> bool:
    values = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "mode")]
    if _called(call) in ANOMALY:
        return not any(isinstance(value, ast.Constant) and not value.value for value in values)
    return any(
        word.arg == "detect_anomaly"
        and isinstance(word.value, ast.Constant)
        and word.value.value is True
        for word in call.keywords
    )


def _traces(call: ast.Call) -> bool:
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    off = any(isinstance(value, ast.Constant) and value.value is None for value in call.args)
    return not off and f"{owner}.{_called(call)}" in ("tracemalloc.start", "sys.settrace")


def _checkpoints(call: ast.Call) -> bool:
    if _called(call) in ("gradient_checkpointing_enable", "enable_gradient_checkpointing"):
        return True
    return any(
        word.arg in ("gradient_checkpointing", "use_gradient_checkpointing")
        and isinstance(word.value, ast.Constant)
        and word.value.value is True
        for word in call.keywords
    )


def _widens_default(call: ast.Call) -> bool:
    words = [ast.unparse(value) for value in call.args]
    return (_called(call) == "set_default_dtype" and bool(set(words) & set(WIDE))) or (
        _called(call) == "set_default_tensor_type" and any("Double" in word for word in words)
    )


def _widens_model(call: ast.Call) -> bool:
    """Calls such as `Net().double()`, `model.to(torch.float64)` on what looks like a model."""
    if not isinstance(call.func, ast.Attribute):
        return False
    widens = call.func.attr == "double" or (
        call.func.attr == "to" and bool(_arguments(call) & set(WIDE))
    )
    return widens and (isinstance(call.func.value, ast.Call) or _names_model(call.func.value))


def _takes_dtype(call: ast.Call) -> bool:
    """Calls such as `Net().to(x.dtype)`, `model.to(dtype)`: the likely cause if a model
    is float64.
    """
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "to"):
        return False
    owner = call.func.value
    made = isinstance(owner, ast.Call) and _called(owner)[:1].isupper()
    typed = any(text.rpartition(".")[2] == "dtype" for text in _arguments(call))
    return typed and (made or _names_model(owner))


def _arguments(call: ast.Call) -> set[str]:
    return {ast.unparse(value) for value in (*call.args, *(word.value for word in call.keywords))}


def _names_model(owner: ast.expr) -> bool:
    name = ast.unparse(owner).rpartition(".")[2].lower()
    return any(part in name for part in ("model", "net", "module"))
