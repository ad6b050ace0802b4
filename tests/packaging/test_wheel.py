"""What is published: wheel and sdist, made by the project's own build backend; and the wheel in an
environment that holds what it asks for and nothing else, without torch and without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import flatout

pytestmark = pytest.mark.slow

MOST_BYTES = 3_000_000
"""Code and texts fill most of it; a picture, a log or a build that slipped in has no place."""
PACKAGES = ("flatout", "flatout_agent", "flatout_programs", "flatout_train")


@pytest.fixture(scope="module")
def built(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist that the wheel was made from."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", str(folder), str(root))
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel and what it asks for."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False)
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    asked = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    flags = ["--no-index", "--no-deps", "--no-compile", "--quiet"]
    subprocess.run([*asked, "install", *flags, str(wheel)], check=True)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run("-c", where, python=python).strip())
    for distribution in needed(metadata.requires("flatout") or []):
        copy(distribution, packages)
    subprocess.run([*asked, "check"], check=True)
    return python


def needed(requirements: list[str]) -> Iterator[metadata.Distribution]:
    """The distributions here that these requirements ask for, and all that those ask for."""
    names: set[str] = set()
    waiting = [Requirement(item) for item in requirements]
    while waiting:
        requirement = waiting.pop()
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name not in names:
            names.add(requirement.name)
            distribution = metadata.distribution(requirement.name)
            waiting += map(Requirement, distribution.requires or [])
            yield distribution


def copy(distribution: metadata.Distribution, packages: Path) -> None:
    for file in distribution.files or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), target)


def run(*arguments: str, python: Path | str = sys.executable, codes: tuple[int, ...] = (0,)) -> str:
    environment = {key: item for key, item in os.environ.items() if not key.startswith("PYTHON")}
    environment.pop("VIRTUAL_ENV", None)
    path = os.pathsep.join([str(Path(python).parent), environment["PATH"]])
    ended = subprocess.run(
        [str(python), *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment | {"PATH": path, "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert ended.returncode in codes, ended.stdout + ended.stderr
    return ended.stdout


def program(python: Path) -> Path:
    return python.with_name("flatout.exe" if os.name == "nt" else "flatout")


def sources(root: Path) -> set[str]:
    """Every file of the packages, as the wheel should name it."""
    return {
        path.relative_to(root / "src").as_posix()
        for package in PACKAGES
        for path in (root / "src" / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_and_sdist_are_whole_and_work_where_there_is_no_torch(
    built: Path, root: Path, wheel: Path, python: Path, tmp_path: Path
) -> None:
    # the index would take both
    names = sorted(path.name for path in built.iterdir())
    version = flatout.__version__
    assert names == [f"flatout-{version}-py3-none-any.whl", f"flatout-{version}.tar.gz"]
    run("-m", "twine", "check", "--strict", *(str(built / name) for name in names))
    # the wheel holds every file of the packages and no other
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == sources(root)
    assert wheel.stat().st_size <= MOST_BYTES
    kinds = {Path(name).suffix for name in names}
    assert kinds >= {".py", ".toml", ".j2", ".css", ".js"}
    # the sdist holds what the wheel is made from and no tests
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.partition("/")[0] for name in names}
    files = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert tops - {".gitignore"} == {"src", *files}
    assert {f"src/{name}" for name in sources(root)} <= names
    # installed it stands in the new environment without torch
    asked = "import flatout, flatout_agent, importlib.util as u; "
    asked += "print(flatout.__file__, flatout_agent.__file__, u.find_spec('torch'), sep='\\n')"
    *places, torch = run("-c", asked, python=python).splitlines()
    assert all(Path(place).is_relative_to(python.parents[1]) for place in places)
    assert torch == "None"
    # every command of the readme is there without torch
    readme = (root / "README.md").read_text(encoding="utf-8")
    names = sorted(set(re.findall(r"\[`flatout ([a-z]+)", readme)))
    script = program(python)
    assert {"tune", "run", "eject", "profile", "doctor", "explain", "monitor", "export"} <= {*names}
    each = "import sys; from flatout.__main__ import outcome\n"
    each += "for name in sys.argv[1:]: outcome([name, '--help'])"
    helps = run("-c", each, *names, python=python)
    assert [name for name in names if f"Usage: flatout {name}" not in helps] == []
    # what needs no torch works without it
    (tmp_path / "hello.py").write_text("print('hello')\n")
    assert run("run", "--no-plan", str(tmp_path / "hello.py"), python=script) == "hello\n"
    plan = tmp_path / "flatout.toml"
    plan.write_text("version = 1\n[boosts.tf32]\n")
    ejected = run("eject", "--plan", str(plan), python=script)
    assert 'torch.set_float32_matmul_precision("high")' in ejected
    assert "\nverdict " in run("doctor", python=script, codes=(0, 1))
    frame = json.loads(run("monitor", "--once", "--json", python=script))
    assert frame["machines"]
    assert "pip install" in run("env", "install", "--for", "gpu=a100,driver=550", python=script)
    # the installed explain has its signatures and pages
    assert "CUDA" in run("explain", "RuntimeError: CUDA error: out of memory", python=script)
    assert run("explain", "ENV002", python=script).startswith("# ENV002")
