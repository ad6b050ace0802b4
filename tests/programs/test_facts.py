"""facts.py in real interpreters: what it tells of packages on disk, and of the real torch here."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flatout_programs import facts
from flatout_programs.tell import MARK
from probing.fake_packages import CUDA_TORCH, CUDA_VERSION, bare, install, site

PROGRAM = Path(facts.__file__)


def told(python: str, *arguments: str, **environ: str) -> list[dict[str, Any]]:
    """The lines that the interpreter tells."""
    command = [python, str(PROGRAM), *arguments]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environ
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    assert lines, done.stderr
    assert lines == done.stdout.splitlines()
    return [json.loads(line[len(MARK) :]) for line in lines]


@pytest.fixture
def python(tmp_path: Path) -> str:
    return bare(tmp_path / "venv")


@pytest.mark.slow
def test_the_real_torch_here() -> None:
    import torch

    files, imported, devices, done = told(sys.executable)
    assert files["executable"] == sys.executable
    assert files["version"] == ".".join(map(str, sys.version_info[:3]))
    version, _, build = torch.__version__.partition("+")
    assert files["torch"]["version"] == version
    assert files["torch"]["build"] == (build or None)
    assert files["torch"]["cuda"] == torch.version.cuda
    assert Path(files["torch"]["location"]) == Path(torch.__file__).parent.parent
    assert {"torch", "numpy"} <= {package["name"] for package in files["packages"]}
    assert "pytest" not in {package["name"] for package in files["packages"]}
    assert imported["torch"]["imported"] is True
    assert imported["torch"]["mps_built"] is torch.backends.mps.is_built()
    assert devices["torch"]["cuda_available"] is torch.cuda.is_available()
    assert devices["torch"]["device_count"] == torch.cuda.device_count()
    assert done == {"done": True}


def test_an_interpreter_without_anything(python: str) -> None:
    files, done = told(python)
    assert (files["packages"], files["duplicates"], files["torch"]) == ([], [], None)
    assert files["virtual_environment"] is True
    assert (files["conda"], files["managed_by"], files["user_site"]) == (False, None, False)
    assert done == {"done": True}


def test_torch_for_cuda_with_an_old_driver(python: str) -> None:
    needs = ('nvidia-cudnn-cu12==9.7.1.26; platform_system == "Linux"', "sympy>=1.13.3")
    modules = {"version": CUDA_VERSION, "__init__": CUDA_TORCH}
    install(site(python), "torch", "2.7.1", "uv", needs, **modules)
    files, imported, devices, _ = told(python)
    torch = {**files["torch"], **imported["torch"], **devices["torch"]}
    del torch["location"]
    assert torch == {
        "version": "2.7.1",
        "build": "cu128",
        "cuda": "12.8",
        "hip": None,
        "xpu": None,
        "installer": "uv",
        "requires": [needs[0]],
        "imported": True,
        "mps_built": False,
        "mps_available": False,
        "xpu_available": False,
        "arch_list": ["sm_75", "sm_80", "compute_90"],
        "cuda_available": False,
        "cuda_error": "CUDA initialization: The NVIDIA driver on your system is too old "
        "(found version 11040).",
        "device_count": 0,
        "cudnn": "9.7.1",
        "nccl": "2.26.2",
    }


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (
            "raise ImportError('libcudart.so.12: cannot open shared object file')",
            "ImportError: libcudart.so.12: cannot open shared object file",
        ),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise OSError('two\\n  lines')", "OSError: two lines"),
        ("", "AttributeError: module 'torch' has no attribute '__version__'"),
    ],
)
def test_a_torch_that_cannot_be_imported(python: str, code: str, error: str) -> None:
    install(site(python), "torch", "2.7.1", version=CUDA_VERSION, __init__=code)
    files, imported, done = told(python)
    assert files["torch"]["cuda"] == "12.8"
    assert imported["torch"]["imported"] is False
    assert imported["torch"]["import_error"].startswith(error)
    assert done == {"done": True}


def test_metadata_without_the_package(python: str) -> None:
    """What an installation that broke off leaves behind."""
    install(site(python), "torch", "2.7.1")
    files, imported, _ = told(python)
    assert (files["torch"]["version"], files["torch"]["cuda"]) == ("2.7.1", None)
    assert imported["torch"]["import_error"] == "ModuleNotFoundError: No module named 'torch'"


def test_what_imports_print_is_no_line_of_ours(python: str) -> None:
    noise = "import os, sys; print('hello'); os.write(1, b'raw'); sys.stdout.flush()\n"
    install(site(python), "torch", "2.7.1", version=CUDA_VERSION, __init__=noise + CUDA_TORCH)
    assert len(told(python)) == 4


def test_what_files_tell_comes_before_a_hanging_import(python: str) -> None:
    install(site(python), "torch", "2.7.1", __init__="import time; time.sleep(600)")
    process = subprocess.Popen([python, str(PROGRAM)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    began = time.monotonic()
    line = process.stdout.readline()
    assert time.monotonic() - began < 120  # and not 600
    process.kill()
    process.communicate()
    assert json.loads(line[len(MARK) :])["torch"]["version"] == "2.7.1"


def test_nothing_is_written_and_nothing_of_ours_is_in_the_way(python: str) -> None:
    code = "import wire\n"  # a module of the user's that has the name of one of ours
    install(site(python), "torch", "2.7.1", __init__=code + CUDA_TORCH, version=CUDA_VERSION)
    (site(python) / "wire.py").write_text("")
    before = sorted(site(python).rglob("*"))
    assert told(python)[1]["torch"]["imported"] is True
    assert sorted(site(python).rglob("*")) == before


def test_one_package_in_two_places(python: str, tmp_path: Path) -> None:
    install(site(python), "torch", "2.7.1")
    install(tmp_path / "first", "torch", "2.3.0")
    install(tmp_path / "first", "triton", "2.3.0")
    files = told(python, PYTHONPATH=str(tmp_path / "first"))[0]
    assert [(item["name"], item["version"]) for item in files["packages"]] == [
        ("torch", "2.3.0"),
        ("triton", "2.3.0"),
    ]
    assert [(item["version"], Path(item["location"])) for item in files["duplicates"]] == [
        ("2.3.0", (tmp_path / "first").resolve()),
        ("2.7.1", site(python).resolve()),
    ]


def copy(version: str, installer: str | None) -> dict[str, Any]:
    return {"name": "torch", "version": version, "location": "site", "installer": installer}


@pytest.mark.parametrize(
    ("version", "installer", "twice"),
    [
        ("2.3.0", "conda", False),
        ("2.3.0", None, False),
        ("2.3.0.post304", None, False),
        ("2.5.1", "pip", True),
        ("2.5.1+cu124", None, True),
    ],
)
def test_pip_over_conda(tmp_path: Path, version: str, installer: str | None, twice: bool) -> None:
    for name in ("pytorch-2.3.0-py3.12_cuda12.1_cudnn8.9.2_0", "history", "zlib-1.3-h1_0"):
        (tmp_path / f"{name}.json").write_text("{}")
    records = facts.conda_records(tmp_path)
    assert [(item["name"], item["version"]) for item in records] == [("torch", "2.3.0")]
    packages, duplicates = facts.sorted_out([copy(version, installer)], records)
    assert [item["version"] for item in packages] == [version]
    assert [item["installer"] for item in duplicates] == ([installer, "conda"] if twice else [])
    if not twice:
        assert packages[0]["installer"] == "conda"


@pytest.mark.parametrize(
    ("number", "version"),
    [(91002, "9.10.2"), (90100, "9.1.0"), (8902, "8.9.2"), (7605, "7.6.5"), (None, None)],
)
def test_version_of_cudnn(number: int | None, version: str | None) -> None:
    assert facts.dotted(number) == version


def test_managed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path = tmp_path / "venv"
    tmp_path.mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.5.1\n")
    assert facts.managed_by(conda=False, virtual=True) == "uv"
    assert facts.managed_by(conda=True, virtual=False) == "conda"
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert facts.managed_by(conda=False, virtual=True) == "pip"
    (tmp_path.parent / "poetry.lock").write_text("")
    assert facts.managed_by(conda=False, virtual=True) == "poetry"
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    (tmp_path / "EXTERNALLY-MANAGED").write_text("")
    assert facts.managed_by(conda=False, virtual=False) == "system"


@pytest.mark.parametrize("name", ["facts.py", "selftest.py", "packages.py", "tell.py"])
def test_python_3_7_can_read_it(name: str) -> None:
    ast.parse((PROGRAM.parent / name).read_text(encoding="utf-8"), feature_version=(3, 7))


@pytest.mark.parametrize("minor", range(7, 15))
def test_older_and_newer_interpreters(minor: int) -> None:
    kept = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
    python = str(kept[-1]) if kept else shutil.which(f"python3.{minor}")
    ask = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    done = python and subprocess.run([python, "-c", ask], capture_output=True, text=True)
    if not python or not done or done.returncode:
        pytest.skip(f"no Python 3.{minor} here")
    assert told(python)[0]["version"] == done.stdout.strip()
