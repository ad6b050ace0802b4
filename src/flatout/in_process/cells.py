"""The cells of a notebook, as the kernel tells of them; IPython is there, or nothing happens."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flatout.reporting.notebook import CellOutput


def shell() -> Any:
    """The IPython shell of this process, or None without one."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def output() -> CellOutput | None:
    """Where a notebook cell shows its run, or None outside a notebook or without a front end."""
    return CellOutput(named) if getattr(shell(), "kernel", None) is not None else None


def visible(page: Path, name: str) -> Path:
    """A copy of a report under this name in the working folder; outside a notebook, the report.

    The front ends of notebooks neither list nor open what lies in a hidden folder, as runs do. In
    the copy the cells have their names.
    """
    if output() is None:
        return page
    copy = Path.cwd() / name
    try:
        copy.write_text(named(page.read_text(encoding="utf-8")), encoding="utf-8")
    except OSError:  # nothing may be written here
        return page
    return copy


def follow(changed: Callable[[bool], None]) -> Callable[[], None]:
    """Call `changed` when a cell has ended, and when one begins; returns the way to stop that.

    changed: whether the cell was interrupted by the user.
    """
    events: Any = getattr(shell(), "events", None)
    if events is None:
        return lambda: None

    def ended(result: Any) -> None:
        changed(interrupted(result))

    def begins(info: Any) -> None:
        changed(False)

    handlers = {"pre_run_cell": begins, "post_run_cell": ended}
    for name, handler in handlers.items():
        events.register(name, handler)

    def leave() -> None:
        for name, handler in handlers.items():
            if handler in events.callbacks[name]:
                events.unregister(name, handler)

    return leave


def interrupted(result: Any) -> bool:
    """Whether the user has interrupted the cell that has this result."""
    return isinstance(getattr(result, "error_in_exec", None), KeyboardInterrupt)


def after_this_cell(ended: Callable[[Any], None]) -> None:
    """Call `ended` with the result of the cell that is being executed, once it is there."""
    events = shell().events

    def once(result: Any) -> None:
        events.unregister("post_run_cell", once)
        ended(result)

    events.register("post_run_cell", once)


def named(text: str) -> str:
    """The text with the files of cells under the cells' names, as tracebacks have them: In[3]."""
    for file, (name, _) in _codes().items():
        text = text.replace(file, name).replace(Path(file).name, name)
    return text


@contextmanager
def on_disk() -> Iterator[None]:
    """Lay the code of all cells where the kernel says that it lies, for those who read files."""
    written = []
    for path, (_, code) in [(Path(file), code) for file, code in _codes().items()]:
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(code, encoding="utf-8")
            written.append(path)
    try:
        yield
    finally:
        for path in written:
            path.unlink(missing_ok=True)


def _codes() -> dict[str, tuple[str, str]]:
    """File that the kernel tells of a cell -> the cell's name, and its code."""
    name_of = getattr(shell().compile, "format_code_name", lambda file: None)
    codes = {}
    for file, entry in list(linecache.cache.items()):
        name = name_of(file)
        if name is not None and Path(file).is_absolute() and len(entry) > 1:
            codes[file] = name[1], "".join(entry[2])
    return codes
