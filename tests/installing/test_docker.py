"""The Dockerfile: what Docker reads, with the right wheel and devices in it."""

from __future__ import annotations

import pytest

from flatout.installing import description, docker
from flatout.knowledge.compat import pytorch as table
from installing import grammar

SITUATIONS = {
    "gpu=rtx4090,driver=535,os=ubuntu22.04,python=3.11": "cu126",
    "gpu=rtx5090,driver=580.95.05,os=ubuntu24.04,python=3.12": "cu13",
    "gpu=rtx4090,driver=581.80,os=windows,python=3.12": "cu13",
    "gpu=mi300x,rocm=6.4,os=ubuntu22.04,python=3.12": "rocm6.4",
    "gpu=arc-b580,os=ubuntu24.04,python=3.12": "xpu",
    "gpu=m3,python=3.12": "cpu",
    "os=alma9": "cpu",
    "os=ubuntu22.04,libc=musl 1.2.4,python=3.12": "cpu",
    "gpu=nvidia,capability=3.7,driver=470.256.02,python=3.10": "cu118",
}


@pytest.mark.parametrize("text", SITUATIONS)
def test_docker_reads_the_file(text: str) -> None:
    build = SITUATIONS[text]
    here = description.read(text)
    text, choice = docker.file(here)
    instructions = grammar.dockerfile(text)
    assert choice.build.startswith(build)
    runs = [rest for word, rest in instructions if word == "RUN"]
    install = next(rest for rest in runs if "pip install" in rest)
    assert f"torch=={choice.version}" in install
    assert table.index_url(choice.build) in install and "--no-cache-dir" in install
    words = [word for word, _ in instructions]
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN")
    assert ("USER", "user") in instructions
    minor = here.python_minor or "3"
    assert instructions[0][1].startswith(f"python:{minor}") and "slim" in instructions[0][1]


@pytest.mark.parametrize(
    ("text", "options", "health"),
    [
        ("gpu=rtx4090,driver=535,os=ubuntu22.04,python=3.11", "--gpus all", "nvidia-smi"),
        (
            "gpu=mi300x,rocm=6.4,os=ubuntu22.04,python=3.12",
            "--device /dev/kfd --device /dev/dri",
            "/dev/kfd",
        ),
        ("os=ubuntu24.04,python=3.12", "", ""),
    ],
)
def test_devices_are_those_of_the_vendor(text: str, options: str, health: str) -> None:
    file, _ = docker.file(description.read(text))
    assert f"docker run --rm {options}" in file
    assert '--shm-size 8gb --ulimit memlock=-1 --ulimit stack=67108864 -v "$PWD:/work"' in file
    assert ("HEALTHCHECK" in file) == bool(health)
    assert health in file
    nvidia = "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    assert (nvidia in file, "--gpus" in file) == (("nvidia" in health),) * 2


def test_the_python_is_one_that_the_build_has() -> None:
    file, choice = docker.file(description.read("gpu=nvidia,capability=3.7,driver=470.256.02"))
    release = table.release(choice.version)
    assert choice.build == "cu118" and release is not None
    assert any(f"\nFROM python:{python}-slim\n" in file for python in release.pythons)
