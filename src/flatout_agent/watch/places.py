"""Finds the running line of the user's own code, cheaply enough for every call.

Code is the user's own if it is neither in Python's library, nor among installed packages, nor in
the agent. The file that was started always counts as the user's.
"""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType

AGENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120
LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep  # noqa: PTH100, PTH120
PACKAGES = ("site-packages", "dist-packages")
OWN = os.path.dirname(AGENT.rstrip(os.sep)) + os.sep  # noqa: PTH120
"""The folder in which flatout's packages lie, perhaps beside others."""
OWN_PACKAGES = ("flatout", "flatout_agent", "flatout_programs", "flatout_train")
OURS = tuple(OWN + name + os.sep for name in OWN_PACKAGES)
GENERATED = {"<eval_with_key": "torch", "<__array_function__": "numpy"}
"""Prefix of the file name of generated code -> its owner."""
STARTED_IN = os.getcwd() + os.sep  # noqa: PTH109

_names: dict[str, str] = {}
"""File name in the code object -> name in reports, or empty if it is not the user's."""


def where() -> str | None:
    """file:line of the innermost frame of the user's code, or None if this thread has none."""
    frame: FrameType | None = user_frame(sys._getframe(1))
    return location(frame) if frame is not None else None


def location(frame: FrameType) -> str:
    """file:line of a frame, the file relative to where the program was started."""
    return f"{_names.get(frame.f_code.co_filename) or frame.f_code.co_filename}:{frame.f_lineno}"


def user_frame(frame: FrameType | None, inside: str | None = None) -> FrameType | None:
    """The first frame of the user's code from `frame` outwards.

    inside: functions of this name are skipped, to find their caller.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        name = _names.get(file)  # most are known: no call
        if name is None:
            name = _names[file] = _name(file)
        if name and frame.f_code.co_name != inside:
            return frame
        frame = frame.f_back
    return None


def display(file: str) -> str:
    """A file's name in reports: relative to where the program was started, else the whole path."""
    if file.startswith("<"):
        return file
    path = os.path.abspath(file)  # noqa: PTH100
    return path[len(STARTED_IN) :] if path.startswith(STARTED_IN) else path


def is_own(file: str) -> bool:
    """Whether a file is the user's."""
    name = _names.get(file)
    if name is None:
        name = _names[file] = _name(file)
    return bool(name)


def own_files() -> list[str]:
    """The files of the program's own modules that are imported so far."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return [file for file in files if isinstance(file, str) and is_own(file)]


def package(file: str) -> str:
    """The package, or the module of Python's library, that a file belongs to; empty for the user's
    own.
    """
    if is_own(file):
        return ""
    if file.startswith("<"):
        return next((name for start, name in GENERATED.items() if file.startswith(start)), "python")
    path = os.path.abspath(file)  # noqa: PTH100
    if path.startswith(_torch()):
        return "torch"
    parts = path.replace("\\", "/").split("/")
    for at, part in enumerate(parts[:-1]):
        if part in PACKAGES:
            return parts[at + 1].removesuffix(".py")
    for folder in (OWN, LIBRARY):
        if path.startswith(folder):
            first = path[len(folder) :].replace("\\", "/").split("/")[0].removesuffix(".py")
            if folder is LIBRARY or first in OWN_PACKAGES:
                return first
    return "python"


def _name(file: str) -> str:
    if file.startswith("<"):
        return ""
    path = os.path.abspath(file)  # noqa: PTH100
    parts = path.replace("\\", "/").split("/")
    foreign = path.startswith((*OURS, LIBRARY, _torch())) or any(
        folder in parts for folder in PACKAGES
    )
    return "" if foreign and path != _main() else display(file)


def _main() -> str | None:
    """The file that was started."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(main) if main is not None else None  # noqa: PTH100


def _torch() -> str:
    """The folder of torch, which may be a checkout; without torch, a string that
    matches nothing.
    """
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return _folder(file) if file else "\0"


@functools.lru_cache(maxsize=1)
def _folder(file: str) -> str:
    return os.path.dirname(os.path.abspath(file)) + os.sep  # noqa: PTH100, PTH120
