"""CUDA toolkits as installers, distributions and conda lay them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flatout.nouns.machine import CudaToolkit
from flatout.probing import toolkits
from flatout.probing.toolkits import ToolkitPaths
from probing.planted import plant

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links and shell scripts")
VERSION = '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}'
HEADER = "#ifndef X\n#define CUDA_VERSION 11080\n"
NVCC_SAYS = "#!/bin/sh\necho 'Cuda compilation tools, release 10.1, V10.1.243'\n"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler has a second to answer, and a busy machine may need longer."""
    monkeypatch.setattr(toolkits, "STARTING_S", 120.0)


def program(root: Path, name: str, text: str = "#!/bin/sh\nexit 1\n") -> str:
    """An executable file; its folder."""
    path = plant(root, {name: text}) / name
    path.chmod(0o755)
    return str(path.parent)


def look(root: Path, *path: str, **environ: str) -> tuple[CudaToolkit, ...]:
    return toolkits.toolkits({"PATH": os.pathsep.join(path), **environ}, ToolkitPaths(root))


def test_several_and_the_wrong_one_first(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "usr/local/cuda-12.4/version.json": VERSION,
            "usr/local/cuda-11.8/include/cuda.h": HEADER,
            "usr/local/cuda-11.8/lib64/libcudart.so.11.0": "",
            "usr/local/cuda-9.0/version.txt": "CUDA Version 9.0.176\n",
            "usr/local/cuda-runtime/lib64/libcudart.so": "",
        },
        {"usr/local/cuda": "usr/local/cuda-12.4"},
    )
    local = tmp_path / "usr/local"
    old = program(tmp_path, "usr/local/cuda-11.8/bin/nvcc")
    program(tmp_path, "usr/local/cuda-12.4/bin/nvcc")
    told = look(
        tmp_path,
        old,
        str(tmp_path / "nothing"),
        f"{local}/cuda/bin",
        old,
        CUDA_HOME=f"{local}/cuda",
        LD_LIBRARY_PATH=f"{local}/cuda-11.8/lib64:/usr/lib",
    )
    assert told == (
        CudaToolkit(f"{local}/cuda-11.8", "11.8", 0, False, True),
        CudaToolkit(f"{local}/cuda-12.4", "12.4", 1, True, False),
        CudaToolkit(f"{local}/cuda-9.0", "9.0", None, False, False),
    )


def test_a_link_on_path(tmp_path: Path) -> None:
    program(tmp_path, "opt/cuda/bin/nvcc", NVCC_SAYS)
    plant(tmp_path, {}, {"usr/bin/nvcc": "opt/cuda/bin/nvcc"})
    told = look(tmp_path, str(tmp_path / "usr/bin"))
    assert told == (CudaToolkit(str(tmp_path / "opt/cuda"), "10.1", 0),)


def test_nvcc_is_started_only_where_no_file_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = f"#!/bin/sh\ntouch {tmp_path}/started\n"
    folder = program(tmp_path, "usr/local/cuda-12.4/bin/nvcc", started)
    assert look(tmp_path, folder)[0].version == "12.4"
    assert not (tmp_path / "started").exists()
    monkeypatch.setattr(toolkits, "STARTING_S", 0.1)
    hangs = program(tmp_path, "tools/bin/nvcc", "#!/bin/sh\nsleep 60\n")
    assert look(tmp_path / "empty", hangs) == (CudaToolkit(str(tmp_path / "tools"), None, 0),)


def test_conda(tmp_path: Path) -> None:
    prefix = tmp_path / "envs/train"
    plant(prefix, {"targets/x86_64-linux/include/cuda.h": HEADER})
    assert look(tmp_path, CONDA_PREFIX=str(prefix)) == ()  # headers alone build nothing
    folder = program(prefix, "bin/nvcc")
    told = look(tmp_path, folder, CONDA_PREFIX=str(prefix))
    assert told == (CudaToolkit(str(prefix), "11.8", 0),)


def test_windows(tmp_path: Path) -> None:
    names = [f"{toolkits.WINDOWS}/v{number}/version.json" for number in ("11.8", "12.4")]
    plant(tmp_path, {names[1]: VERSION, names[0]: "{broken"})
    told = toolkits.toolkits({}, ToolkitPaths(tmp_path / "none", programs=tmp_path))
    assert [(Path(item.path).name, item.version) for item in told] == [
        ("v12.4", "12.4"),
        ("v11.8", "11.8"),
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"cuda": 1}', '{"cuda": {"version": null}}', "\0"])
def test_a_strange_version_file(tmp_path: Path, text: str) -> None:
    plant(tmp_path, {"cuda/version.json": text})
    assert toolkits.version(tmp_path / "cuda") is None
