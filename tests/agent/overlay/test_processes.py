"""The overlay across processes, with faults, and its cost."""

# ruff: noqa: SIM115
from __future__ import annotations

import builtins
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flatout_agent import overlay, wire

Install = Callable[..., list[wire.Redirected]]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def install(tmp_path: Path, user: Path) -> Iterator[Install]:
    undone: list[Callable[[], None]] = []

    def run(**changes: str) -> list[wire.Redirected]:
        records: list[wire.Redirected] = []
        values = {"scratch": str(tmp_path / "scratch"), "protect": str(user), **changes}
        undone.append(overlay.install(wire.TrialOrders(**values), records.append))  # type: ignore
        return records

    yield run
    for undo in undone:
        undo()


def test_undo_puts_everything_back(install: Install, user: Path) -> None:
    before = (builtins.open, os.open, os.stat, os.rename, dict(os.environ))
    orders = wire.TrialOrders(scratch=str(user.parent / "s"), protect=str(user))
    undo = overlay.install(orders, lambda record: None)
    assert builtins.open is not before[0] and os.environ["WANDB_MODE"] == "disabled"
    undo()
    assert (builtins.open, os.open, os.stat, os.rename, dict(os.environ)) == before


def test_each_path_is_reported_once(install: Install, user: Path) -> None:
    records = install()
    for text in ("a", "b"):
        Path("log.txt").write_text(text)
    Path("notes.txt").unlink()
    assert [record.path for record in records] == [str(user / "log.txt"), str(user / "notes.txt")]


def test_what_is_prepared_and_what_comes_after_lie_apart(install: Install, tmp_path: Path) -> None:
    install()
    Path("data.txt").write_text("data")
    overlay.mark_first_step()
    with open("data.txt", "a") as file:
        file.write(" and more")
    assert Path("data.txt").read_text() == "data and more"
    prepared = [path.read_text() for path in (tmp_path / "scratch/prepared").rglob("data.txt")]
    after = [path.read_text() for path in (tmp_path / "scratch/after").rglob("data.txt")]
    assert (prepared, after) == (["data"], ["data and more"])


def in_child(user: str) -> None:
    os.chdir(user)
    assert Path("from-parent.txt").read_text() == "parent"
    assert not Path("notes.txt").exists()
    Path("from-child.txt").write_text("child")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows starts workers by spawn")
def test_a_forked_child_sees_and_is_seen(install: Install, user: Path) -> None:
    install()
    Path("from-parent.txt").write_text("parent")
    Path("notes.txt").unlink()
    child = os.fork()
    if child == 0:
        try:
            in_child(str(user))
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert Path("from-child.txt").read_text() == "child"
    assert sorted(os.listdir()) == ["from-child.txt", "from-parent.txt"]


SPAWNED = """
    import os, sys
    from flatout_agent import overlay, wire
    overlay.install(wire.TrialOrders(scratch=sys.argv[1], protect=sys.argv[2]), lambda record: None)
    here = os.path.join(sys.argv[2], "out")
    assert os.getcwd() == here, os.getcwd()
    assert open("../from-parent.txt").read() == "parent"
    assert not os.path.exists("../notes.txt")
    open("from-child.txt", "w").write("child")
"""


def test_a_process_started_anew_takes_over(install: Install, user: Path, tmp_path: Path) -> None:
    install()
    Path("from-parent.txt").write_text("parent")
    Path("notes.txt").unlink()
    Path("out").mkdir()
    os.chdir("out")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SPAWNED), tmp_path / "scratch", user],
        env={**os.environ, "PYTHONPATH": str(Path(wire.__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Path("from-child.txt").read_text() == "child"


def test_a_full_disk_is_what_the_program_sees(
    install: Install, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    from flatout_agent.overlay import overlay

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)

    monkeypatch.setattr(overlay, "copy_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        open("notes.txt", "a")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "notes.txt")
    assert Path("notes.txt").read_text() == "mine"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_copy_that_runs_out_of_space_leaves_nothing(tmp_path: Path) -> None:
    from flatout_agent.overlay.native import copy_file

    (tmp_path / "big").write_bytes(b"x" * 100)
    (tmp_path / "target").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        copy_file(str(tmp_path / "big"), str(tmp_path / "target"))
    assert not os.path.lexists(tmp_path / "target")


def test_a_fault_of_ours_never_writes_to_the_user_file(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    Path("new.txt").write_text("x")
    from flatout_agent.overlay.overlay import Overlay

    def broken(*args: object, **options: object) -> None:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as patched:
        patched.setattr(Overlay, "locate", broken)
        assert Path("notes.txt").read_text() == "mine"  # reading goes on
        with pytest.raises(OSError, match="could not redirect"):
            open("notes.txt", "w")
        with pytest.raises(OSError, match="could not redirect"):
            os.remove("notes.txt")
    assert Path("notes.txt").read_text() == "mine"


def test_errors_are_those_of_the_system(install: Install, user: Path) -> None:
    install()
    with pytest.raises(FileNotFoundError):
        open("missing/file", "w")
    with pytest.raises(IsADirectoryError if os.name == "posix" else PermissionError):
        open(user, "w")
    with pytest.raises(FileExistsError):
        open("notes.txt", "x")
    with pytest.raises(TypeError):
        open(None)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="null"):
        open("a\0b", "w")
    with pytest.raises(ValueError, match="mode"):
        open("notes.txt", "wz")
    assert Path("notes.txt").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_a_file_that_may_not_be_written_may_not_be_written(install: Install) -> None:
    os.chmod("notes.txt", 0o400)
    install()
    with pytest.raises(PermissionError):
        open("notes.txt", "a")


def test_files_move_in_and_out_of_the_temporary_folder(install: Install, user: Path) -> None:
    install()
    outside = tempfile.mkdtemp()
    try:
        path = os.path.join(outside, "model.bin")
        with open(path, "w") as file:
            file.write("weights")
        os.replace(path, "model.bin")
        assert not os.path.exists(path) and Path("model.bin").read_text() == "weights"
        shutil.move("model.bin", path)
        assert not Path("model.bin").exists()
        assert Path(path).read_text() == "weights"
        shutil.move("notes.txt", outside)
        assert sorted(os.listdir(outside)) == ["model.bin", "notes.txt"]
    finally:
        shutil.rmtree(outside)


def test_a_library_that_writes_by_itself_is_seen_again(install: Install, user: Path) -> None:
    install()
    Path("notes.txt").unlink()
    assert not Path("notes.txt").exists()
    subprocess.run([sys.executable, "-S", "-c", "open('notes.txt', 'w').write('by another')"])
    assert Path("notes.txt").read_text() == "by another"
    assert os.listdir() == ["notes.txt"]


def test_reading_costs_no_system_call_more(install: Install, user: Path) -> None:
    """Where nothing is changed in a folder, `open` makes the calls it made before."""
    folder = user.parent / "data"
    folder.mkdir()
    (folder / "x").write_text("x")
    install()
    Path("log.txt").write_text("so that the overlay is not empty")
    path = str(folder / "x")
    open(path).close()
    from flatout_agent.overlay.native import system

    calls: list[str] = []  # `fspath`, `_path_normpath` work on text alone

    def watch(frame: object, event: str, function: object) -> None:
        if event == "c_call" and getattr(function, "__module__", "") == system.__name__:
            calls.append(getattr(function, "__name__", ""))

    sys.setprofile(watch)
    try:
        open(path).close()
    finally:
        sys.setprofile(None)
    assert [name for name in calls if "path" not in name] == []


def test_installing_imports_no_torch() -> None:
    code = """
        import sys
        from flatout_agent import overlay, wire
        overlay.install(wire.TrialOrders(scratch=sys.argv[1]), lambda record: None)
        print("torch" in sys.modules)
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), folder],
            env={**os.environ, "PYTHONPATH": str(Path(wire.__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == "False\n"
