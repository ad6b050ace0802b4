import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.nouns.errors import UserError
from flatout.running.one import command

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX paths and modes")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    return tmp_path


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def environment(folder: Path) -> Path:
    """A folder that looks like a virtual environment; its interpreter."""
    name = "Scripts/python.exe" if sys.platform == "win32" else "bin/python"
    return executable(folder / name)


def test_a_script_runs_in_the_users_python(here: Path) -> None:
    (here / "train.py").write_text("")
    made = command.resolve(["train.py", "--lr", "0.1", "-m"])
    assert made.argv == (made.python, "train.py", "--lr", "0.1", "-m")
    assert made.script == Path("train.py")
    assert made.display == ("train.py", "--lr", "0.1", "-m")


def test_a_module_runs_with_dash_m(here: Path) -> None:
    (here / "pkg").mkdir()
    (here / "pkg" / "train.py").write_text("")
    made = command.resolve(["--epochs", "3"], module="pkg.train")
    assert made.argv == (made.python, "-m", "pkg.train", "--epochs", "3")
    assert made.script == Path("pkg/train.py")
    assert made.display == ("-m", "pkg.train", "--epochs", "3")
    assert command.resolve([], module="torch.utils.bottleneck").script is None
    (here / "pkg" / "__main__.py").write_text("")
    assert command.resolve([], module="pkg").script == Path("pkg/__main__.py")


@POSIX
def test_any_command_is_found_beside_the_users_python_first(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "train.py").write_text("")
    python = environment(here / "env")
    mine = executable(here / "env" / "bin" / "torchrun")
    other = executable(here / "other" / "torchrun")
    monkeypatch.setenv("PATH", f"{other.parent}{os.pathsep}{os.environ['PATH']}")
    words = ["torchrun", "--nproc-per-node", "2", "train.py", "x.py"]
    assert command.resolve(words, python=sys.executable).argv[0] != str(mine)
    made = command.resolve(words, python=str(python))
    assert made.argv == (str(mine), *words[1:])
    assert made.script == Path("train.py")
    assert made.display == tuple(words)


@POSIX
def test_python_as_a_word_is_the_users_python(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment(here / "env")
    monkeypatch.setenv("VIRTUAL_ENV", str(here / "env"))
    assert command.resolve(["python", "-u", "train.py"]).argv[0] == str(python)


class TestWhichPython:
    def test_the_named_one(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (here / "train.py").write_text("")
        environment(here / "active")
        monkeypatch.setenv("VIRTUAL_ENV", str(here / "active"))
        python = environment(here / "named")
        relative = str(python.relative_to(here))
        assert command.resolve(["train.py"], python=relative).argv[0] == str(python)

    def test_else_the_activated_environment(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        python = environment(here / "active")
        assert command.default_python({"VIRTUAL_ENV": str(here / "active")}) == str(python)
        assert command.default_python({"CONDA_PREFIX": str(here / "active")}) == str(python)

    def test_not_flatouts_own_environment_unless_it_has_torch(
        self, monkeypatch: pytest.MonkeyPatch, here: Path
    ) -> None:
        outside = executable(here / "bin" / "python3")
        own = {"VIRTUAL_ENV": sys.prefix, "PATH": str(outside.parent)}
        monkeypatch.setattr(command, "_torch_is_here", lambda: False)
        if sys.platform != "win32":
            assert command.default_python(own) == str(outside)
        monkeypatch.setattr(command, "_torch_is_here", lambda: True)
        assert command.default_python(own) == sys.executable

    @pytest.mark.skipif(sys.platform == "win32", reason="stands in for the commands of Linux")
    def test_not_that_of_uvx_which_is_thrown_away(
        self, monkeypatch: pytest.MonkeyPatch, here: Path
    ) -> None:
        """`uv run` has one of the user's, and names it."""
        own, outside = environment(here / "own"), executable(here / "bin" / "python3")
        executable(own.with_name("python3"))
        monkeypatch.setattr(sys, "prefix", str(here / "own"))
        monkeypatch.setattr(command, "_torch_is_here", lambda: False)
        uvx = {"UV": "/bin/uv", "PATH": os.pathsep.join(map(str, (own.parent, outside.parent)))}
        assert command.default_python(uvx) == str(outside)
        run = {**uvx, "VIRTUAL_ENV": sys.prefix}
        assert command.default_python(run) == str(own.with_name("python3"))

    def test_on_windows_the_first_that_is_no_stub_of_the_store(
        self, monkeypatch: pytest.MonkeyPatch, here: Path
    ) -> None:
        monkeypatch.setattr(command, "_torch_is_here", lambda: False)
        monkeypatch.setattr(sys, "platform", "win32")
        for name in ("python.exe", "python3.exe"):
            executable(here / "WindowsApps" / name, "")
            executable(here / "other" / name)
        conda = executable(here / "conda" / "python.exe")
        folders = [str(here / name) for name in ("none", "WindowsApps", "conda", "other")]
        assert command.default_python({"PATH": os.pathsep.join(folders)}) == str(conda)
        assert command.default_python({"PATH": folders[1]}) == sys.executable
        assert command.default_python({}) == sys.executable

    def test_condas_base_is_active_everywhere_and_means_little(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environment(here / "base")
        base = {"CONDA_PREFIX": str(here / "base"), "CONDA_DEFAULT_ENV": "base"}
        monkeypatch.setattr(command, "_torch_is_here", lambda: True)
        assert command.default_python(base) == sys.executable

    def test_an_environment_that_was_deleted_is_passed_over(self, here: Path) -> None:
        found = command.default_python({"VIRTUAL_ENV": str(here / "gone"), "PATH": ""})
        assert Path(found).is_file()

    def test_torch_is_looked_for_without_importing_it(self) -> None:
        text = "import sys; from flatout.running.one import command as c; c._torch_is_here()"
        argv = [sys.executable, "-c", f"{text}; sys.exit('torch' in sys.modules)"]
        assert subprocess.run(argv, check=False).returncode == 0


class TestWhatCannotRun:
    def refusal(self, *words: str, **options: str | None) -> UserError:
        with pytest.raises(UserError) as caught:
            command.resolve(words, **options)
        assert caught.value.exit_code == 2
        assert caught.value.next_step
        return caught.value

    def test_no_script_names_one_that_is_near(self, here: Path) -> None:
        assert "train.py" in str(self.refusal().next_step)
        assert "look for it" in str(self.refusal("nowhere/zzz.py").next_step)
        (here / "examples" / "images").mkdir(parents=True)
        (here / "examples" / "images" / "train.py").write_text("")
        assert str(Path("examples/images/train.py")) in str(self.refusal("train.py").next_step)
        (here / "train.py").write_text("")
        error = self.refusal("trian.py")
        assert "no such script: trian.py" in error.message
        assert error.next_step == "did you mean train.py?"

    def test_a_folder(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(here))
        (here / "train.py").mkdir()
        (here / "project").mkdir()
        (here / "project" / "__main__.py").write_text("")
        assert "folder" in self.refusal("train.py").message
        assert "flatout run -- python project" in str(self.refusal("project").next_step)

    @POSIX
    def test_not_a_regular_file(self, here: Path) -> None:
        os.mkfifo(here / "pipe.py")
        assert "not a regular file" in self.refusal("pipe.py").message

    @POSIX
    def test_a_file_that_is_not_executable(self, here: Path) -> None:
        (here / "job.sh").write_text("")
        (here / "train").write_text("")
        assert "bash ./job.sh" in str(self.refusal("./job.sh").next_step)
        assert "python ./train" in str(self.refusal("./train").next_step)

    def test_a_command_that_is_not_there(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tool = executable(
            here / "bin" / ("torchrun.exe" if sys.platform == "win32" else "torchrun")
        )
        monkeypatch.setenv("PATH", str(tool.parent))
        assert "torchrun" in str(self.refusal("torchrum").next_step)
        (here / "main.py").write_text("")
        assert self.refusal("main").next_step == "did you mean main.py?"

    def test_an_option_that_flatout_does_not_know(self) -> None:
        assert "before the script" in str(self.refusal("--epochs", "3", "train.py").next_step)

    def test_no_such_interpreter(self, here: Path) -> None:
        python = environment(here / "env")
        assert str(python) in str(self.refusal("train.py", python=str(here / "env")).next_step)
        assert "nope/python" in self.refusal("train.py", python="nope/python").message


def test_the_hash_is_of_the_scripts_bytes(here: Path) -> None:
    path = here / "train.py"
    path.write_bytes(b"print(1)\r\n")
    first = command.script_sha256(path)
    path.write_bytes(b"print(1)\n")
    assert command.script_sha256(path) != first
    assert command.script_sha256(None) is None
    assert command.script_sha256(here / "none.py") is None


def test_a_command_is_shown_as_its_shell_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = command.Command((), None, "python", (r"C:\my code\train.py", "--lr", "0.1"))
    assert made.shown == r"'C:\my code\train.py' --lr 0.1" or sys.platform == "win32"
    monkeypatch.setattr(sys, "platform", "win32")
    assert made.shown == r'"C:\my code\train.py" --lr 0.1'
