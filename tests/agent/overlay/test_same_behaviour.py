"""Any sequence of file operations shows the same in the overlay as in a plain folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flatout_agent import overlay, wire

pytestmark = pytest.mark.slow

NAMES = [
    "a",
    "b.txt",
    "out",
    "out/a",
    "out/b.txt",
    "out/deep",
    "out/deep/c",
    "link",
    "old/x",
    "old",
]
names = st.sampled_from(NAMES)
CONTENTS = ["", "one", "second content"]


def write(path: str, mode: str, text: str) -> None:
    with open(path, mode) as file:
        file.write(text)


def change(path: str, text: str) -> str:
    with open(path, "r+") as file:
        before = file.read()
        file.seek(0)
        file.write(text)
    return before


def low_level(path: str, flags: int) -> bytes:
    handle = os.open(path, flags, 0o640)
    try:
        if flags & (os.O_WRONLY | os.O_RDWR):
            os.write(handle, b"low")
            return b""
        return os.read(handle, 100)
    finally:
        os.close(handle)


def scan(path: str) -> list[Any]:
    with os.scandir(path) as entries:
        return sorted(
            (e.name, e.path, e.is_dir(), e.is_file(), e.is_symlink(), os.path.basename(e))
            for e in entries
        )


def status(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_mode, (0 if os.path.isdir(path) else found.st_size)


def facts(path: str) -> list[bool]:
    tests = (os.path.exists, os.path.lexists, os.path.isfile, os.path.isdir, os.path.islink)
    return [test(path) for test in tests]


def look(path: str) -> Any:
    return sorted((str(p), p.is_dir()) for p in Path(path).rglob("*"))


def set_times(path: str) -> None:
    """The system names no file in this one error."""
    try:
        os.utime(path, (1, 2))
    except OSError as error:
        raise OSError(error.errno, "utime") from None


def enter(path: str) -> str:
    os.chdir(path)
    return os.path.basename(os.getcwd())


FLAGS = [
    os.O_RDONLY,
    os.O_WRONLY,
    os.O_RDWR,
    os.O_WRONLY | os.O_CREAT,
    os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    os.O_WRONLY | os.O_APPEND,
]
one: list[Callable[[str], Any]] = [
    os.mkdir,
    os.remove,
    os.unlink,
    os.rmdir,
    os.readlink,
    lambda p: sorted(os.listdir(p)),
    os.removedirs,
    scan,
    status,
    facts,
    look,
    enter,
    shutil.rmtree,
    lambda p: Path(p).read_text(),
    lambda p: Path(p).touch(),
    lambda p: os.makedirs(p, exist_ok=True),
    lambda p: Path(p).mkdir(parents=True),
    lambda p: os.access(p, os.R_OK),
    lambda p: os.chmod(p, 0o700),
    lambda p: os.truncate(p, 2),
    set_times,
    lambda p: os.lstat(p).st_mode,
    lambda p: sorted(n.encode() for n in os.listdir(p)),
    lambda p: sorted(os.listdir(os.fsencode(p))),
]
two: list[Callable[[str, str], Any]] = [
    os.rename,
    os.replace,
    os.link,
    shutil.copyfile,
    shutil.copy2,
    shutil.move,
    shutil.copytree,
    lambda a, b: os.symlink(a, b),
    lambda a, b: os.path.samefile(a, b),
    lambda a, b: Path(a).replace(b),
]
# `one` and `two` are looked up by name when they run: the overlay replaces the functions of `os`.
operations = st.one_of(
    st.tuples(st.sampled_from(range(len(one))), names),
    st.tuples(st.sampled_from(range(len(two))), names, names),
    st.tuples(st.sampled_from(["w", "a", "x", "wb+", "r+"]), names, st.sampled_from(CONTENTS)),
    st.tuples(st.just("change"), names, st.sampled_from(CONTENTS)),
    st.tuples(st.just("low"), names, st.sampled_from(FLAGS)),
    st.just(("step",)),
)


def current(call: Callable[..., Any]) -> Callable[..., Any]:
    """The function of that name in `os` now; our own helpers as they are."""
    name = getattr(call, "__name__", "")
    return getattr(os, name, call) if getattr(call, "__module__", "") in ("posix", "nt") else call


def perform(operation: tuple[Any, ...], on_step: Callable[[], None]) -> Any:
    kind = operation[0]
    if kind == "step":
        return on_step()
    if kind == "change":
        return change(operation[1], operation[2])
    if kind == "low":
        return low_level(operation[1], operation[2])
    if isinstance(kind, str):
        mode = kind if "b" not in kind else kind.replace("b", "")
        return write(operation[1], mode, operation[2])
    if len(operation) == 2:
        return current(one[kind])(operation[1])
    return current(two[kind])(operation[1], operation[2])


def outcome(operation: tuple[Any, ...], on_step: Callable[[], None], root: str) -> Any:
    """The result, or the kind of the error and the names in it; paths told relative to the root."""
    try:
        result = perform(operation, on_step)
    except shutil.Error:
        return "shutil.Error"
    except (FileNotFoundError, NotADirectoryError) as error:
        # A file where a folder was asked for: the overlay may say that there is nothing.
        return "nothing there", short(error.filename, root)
    except OSError as error:
        # Without a number it is one of shutil's own, which has two ways to remove a tree.
        name = None if error.errno is None else short(error.filename, root)
        return type(error).__name__, error.errno, name
    return short(result, root)


def short(value: Any, root: str) -> Any:
    return value.replace(root, "ROOT") if isinstance(value, str) else value


def everything(root: str) -> list[Any]:
    """All names and contents below the root."""
    found: list[Any] = []
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(folder, name)
            text = None
            with contextlib.suppress(OSError), open(path, "rb") as file:
                text = file.read()
            link = short(os.readlink(path), root) if os.path.islink(path) else None
            found.append((short(path, root), text, link, os.lstat(path).st_mode))
    return sorted(found)


def fill(root: Path) -> None:
    """The user's own files."""
    (root / "old" / "deep").mkdir(parents=True)
    (root / "out").mkdir()
    (root / "old" / "x").write_text("the user's")
    (root / "out" / "a").write_text("also the user's")
    (root / "b.txt").write_text("text")
    (root / "link").symlink_to("b.txt")


def run(operations_: list[Any], root: str, on_step: Callable[[], None]) -> list[Any]:
    os.chdir(root)
    results = [outcome(operation, on_step, root) for operation in operations_]
    os.chdir(root)
    return [*results, everything(root)]


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    here = os.getcwd()
    path = Path(os.path.realpath(tempfile.mkdtemp()))
    try:
        yield path
    finally:
        os.chdir(here)
        shutil.rmtree(path)


@settings(suppress_health_check=list(HealthCheck))
@example([(0, "a"), (11, "a"), (11, "a")])
@given(st.lists(operations, max_size=14))
def test_any_sequence_shows_the_same_and_leaves_the_user_files_alone(
    operations_: list[Any],
) -> None:
    with folder() as base:
        plain, user = base / "plain", base / "user"
        for root in (plain, user):
            root.mkdir()
            fill(root)
        untouched = everything(str(user))
        expected = run(operations_, str(plain), lambda: None)
        orders = wire.TrialOrders(scratch=str(base / "scratch"), protect=str(user))
        undo = overlay.install(orders, lambda record: None)
        try:
            seen = run(operations_, str(user), overlay.mark_first_step)
        finally:
            undo()
        assert seen == expected
        assert everything(str(user)) == untouched
