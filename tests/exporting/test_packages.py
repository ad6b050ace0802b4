"""The folder of packages: behind the interpreter's own, and never torch or numpy in it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from flatout.exporting import packages, worker
from flatout.nouns.errors import UserError
from flatout_programs.backends import RuntimePackage

ONE = RuntimePackage("some-runtime", "some_runtime", 5)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packages, "cache_root", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_one_folder_for_each_interpreter(cache: Path) -> None:
    first, second = packages.overlay("/a/python"), packages.overlay("/b/python")
    assert first != second
    assert first.is_relative_to(cache)
    assert packages.existing("/a/python") is None
    first.mkdir(parents=True)
    assert packages.existing("/a/python") == first


def pip(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> list[list[str]]:
    import json

    asked: list[list[str]] = []

    def answer(python: str, words: list[str]) -> str:
        asked.append(list(words))
        items = [{"metadata": {"name": name, "version": version}} for name, version in entries]
        return json.dumps({"install": items})

    monkeypatch.setattr(packages, "_pip", answer)
    return asked


def test_a_plan_pins_everything_and_installs_beside(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pip(monkeypatch, ("some-runtime", "1.2"), ("its-need", "3"))
    plan = packages.plan(sys.executable, [ONE])
    assert plan.pinned == ("some-runtime==1.2", "its-need==3")
    assert "--dry-run" in asked[0]
    assert plan.mb == 5
    assert str(cache) in plan.line
    packages.install(plan)
    assert "--no-deps" in asked[1]
    assert asked[1][asked[1].index("--target") + 1] == str(plan.folder)


@pytest.mark.parametrize("name", ["torch", "numpy", "NumPy"])
def test_torch_and_numpy_stay_the_users(
    cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pip(monkeypatch, ("some-runtime", "1.2"), (name, "1.0"))
    with pytest.raises(UserError, match=f"would replace the installed {name}"):
        packages.plan(sys.executable, [ONE])


def test_pip_that_fails_is_told_by_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: Any, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(args, 1, "", "ERROR: first\nERROR: no such package\n")

    monkeypatch.setattr(packages.subprocess, "run", run)
    with pytest.raises(UserError, match="no such package"):
        packages.plan(sys.executable, [ONE])


def wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    """A package with one module, as pip takes it."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{module}.py", f"version = {version!r}\n")
        file.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        file.writestr(f"{info}/WHEEL", tags)
        file.writestr(f"{info}/RECORD", "")


@pytest.mark.thorough
@pytest.mark.slow
def test_pip_itself_installs_into_the_folder_and_nowhere_else(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    wheel(tmp_path / "wheels", "some-runtime", "1.2", "its-need>=3", "numpy>=1")
    wheel(tmp_path / "wheels", "its-need", "3.0")
    plan = packages.plan(sys.executable, [ONE])
    assert sorted(plan.pinned) == ["its-need==3.0", "some-runtime==1.2"]  # numpy is there already
    assert not plan.folder.exists()
    packages.install(plan)
    assert importlib.util.find_spec("some_runtime") is None
    order = {"do": "packages", "packages": [("some-runtime", "some_runtime")], "threads": 1}
    for overlay, version in ((None, None), (str(plan.folder), "1.2")):
        found = worker.once(sys.executable, {**order, "overlay": overlay}, 60.0, 2**40)
        assert found["versions"] == {"some-runtime": version}
    # What would need another numpy than the user's is not installed.
    wheel(tmp_path / "wheels", "some-runtime", "2.0", "numpy>=999")
    wheel(tmp_path / "wheels", "numpy", "999.0")
    assert packages.plan(sys.executable, [ONE]).pinned[0] == "some-runtime==1.2"
    (tmp_path / "wheels" / "some_runtime-1.2-py3-none-any.whl").unlink()
    with pytest.raises(UserError, match="pip cannot install into"):
        packages.plan(sys.executable, [ONE])


def test_packages_of_the_interpreter_stand_before_those_of_the_folder(tmp_path: Path) -> None:
    for module in ("torch", "some_runtime"):
        (tmp_path / f"{module}.py").write_text("planted = True\n", encoding="utf-8")
    order = {
        "do": "packages",
        "packages": [("torch", "torch"), ("some-runtime", "some_runtime"), ("no", "no_module")],
        "overlay": str(tmp_path),
        "threads": 1,
    }
    found = worker.once(sys.executable, order, 60.0, 2**40)["versions"]
    import torch

    assert found["torch"] == torch.__version__
    assert found["some-runtime"] == "unknown"  # it is there, and has no metadata
    assert found["no"] is None
