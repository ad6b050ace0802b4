"""The Pythons around, from files alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flatout.nouns.interpreter import OtherPython
from flatout.probing import pythons
from probing.planted import plant

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the layout of POSIX systems")
VERSIONS = "home/.pyenv/versions"
TORCH = "__version__ = '2.7.1+cu128'\ndebug = False\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A Debian with its own Python, pyenv, conda and two virtual environments."""
    return plant(
        tmp_path,
        {
            "usr/bin/python3.11": "program",
            "usr/include/python3.11/patchlevel.h": '#define PY_VERSION             "3.11.2"\n',
            "usr/lib/python3/dist-packages/torch/version.py": "__version__ = '1.13.1'\n",
            "home/.pyenv/versions/3.10.13/bin/python3.10": "program",
            "home/.pyenv/versions/3.12.1/bin/python3.12": "program",
            "home/.pyenv/version": "3.12.1\n",
            "home/.pyenv/shims/python": "#!/usr/bin/env bash\n",
            "home/.pyenv/shims/python3": "#!/usr/bin/env bash\n",
            "home/conda/bin/python3.11": "program",
            "home/conda/conda-meta/python-3.11.9-h955ad1f_0.json": "{}",
            "home/conda/lib/python3.11/site-packages/torch/version.py": TORCH,
            "home/.conda/environments.txt": f"{tmp_path}/home/conda\n{tmp_path}/gone\n",
            "project/.venv/pyvenv.cfg": "home = /usr/bin\nuv = 0.5.1\nversion_info = 3.11.2\n",
            "project/.venv/lib/python3.11/site-packages/torch/version.py": TORCH,
            "venv/pyvenv.cfg": "home = /usr/bin\nversion = 3.11.2\n",
        },
        {
            "bin": "usr/bin",
            "usr/bin/python3": "usr/bin/python3.11",
            f"{VERSIONS}/3.10.13/bin/python": f"{VERSIONS}/3.10.13/bin/python3.10",
            f"{VERSIONS}/3.12.1/bin/python": f"{VERSIONS}/3.12.1/bin/python3.12",
            f"{VERSIONS}/3.12.1/bin/python3": f"{VERSIONS}/3.12.1/bin/python3.12",
            "home/conda/bin/python": "home/conda/bin/python3.11",
            "project/.venv/bin/python": "usr/bin/python3.11",
            "project/.venv/bin/python3": "usr/bin/python3.11",
            "venv/bin/python": "usr/bin/python3.11",
        },
    )


def look(
    root: Path, *path: str, besides: str | None = None, **environ: str
) -> tuple[OtherPython, ...]:
    joined = os.pathsep.join(str(root / item) for item in path)
    return pythons.pythons(besides, {"PATH": joined, **environ}, root / "project", root / "home")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked for a fifth of a second, and a busy machine may need longer."""
    monkeypatch.setattr(pythons, "LIMIT_S", 120.0)


def test_every_kind(root: Path) -> None:
    told = look(root, "home/.pyenv/shims", "usr/bin", "bin", VIRTUAL_ENV=str(root / "venv"))
    versions = root / "home/.pyenv/versions"
    cuda = "2.7.1+cu128"
    assert told == (
        OtherPython(str(versions / "3.12.1/bin/python"), "3.12.1", "pyenv", None),
        OtherPython(str(root / "usr/bin/python3"), "3.11.2", "system", "1.13.1"),
        OtherPython(str(root / "venv/bin/python"), "3.11.2", "venv", None),
        OtherPython(str(root / "project/.venv/bin/python"), "3.11.2", "uv", cuda),
        OtherPython(str(root / "home/conda/bin/python"), "3.11.9", "conda", cuda),
        OtherPython(str(versions / "3.10.13/bin/python"), "3.10.13", "pyenv", None),
    )


def test_pyenv_by_variable_and_by_file(root: Path) -> None:
    def first(**environ: str) -> str | None:
        return look(root, "home/.pyenv/shims", **environ)[0].version

    assert first(PYENV_VERSION="3.10.13:3.12.1") == "3.10.13"
    (root / ".python-version").write_text("3.10.13\n")  # above the working folder
    assert first() == "3.10.13"
    (root / ".python-version").write_text("system\n")
    assert first() == "3.11.2"  # none of pyenv's


def test_the_users_own_packages(root: Path) -> None:
    plant(root, {"home/.local/lib/python3.11/site-packages/torch/version.py": TORCH})
    (root / "usr/lib/python3/dist-packages/torch/version.py").unlink()
    assert look(root, "usr/bin")[0].torch == "2.7.1+cu128"


@pytest.mark.parametrize("text", ["", "version = \n", "\0\n", "__version__ = 3"])
def test_strange_files(root: Path, text: str) -> None:
    for name in ("venv/pyvenv.cfg", "usr/lib/python3/dist-packages/torch/version.py"):
        (root / name).write_text(text)
    told = look(root, "usr/bin", "venv/bin")
    assert told[0].torch is None
    assert told[1].version in (None, "3.11", "3.11.2")


def test_the_real_ones_here() -> None:
    told = pythons.pythons()
    assert all(Path(item.executable).exists() for item in told)
    own = Path(sys.prefix)
    mine = [item for item in told if own in Path(item.executable).parents]
    assert [item.version for item in mine] in ([], [".".join(map(str, sys.version_info[:3]))])
