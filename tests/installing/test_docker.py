"""Dockerfile and compose file: what Docker reads, with the right wheel and devices in them."""

from __future__ import annotations

import pytest
import yaml

from flatout.installing import description, docker
from flatout.knowledge.compat import pytorch as table
from flatout.nouns.errors import UserError
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
def test_docker_reads_the_files(text: str) -> None:
    build = SITUATIONS[text]
    here = description.read(text)
    made = docker.files(here)
    instructions = grammar.dockerfile(made.dockerfile)
    assert made.choice.build.startswith(build)
    runs = [rest for word, rest in instructions if word == "RUN"]
    install = next(rest for rest in runs if "pip install" in rest)
    assert f"torch=={made.choice.version}" in install
    assert table.index_url(made.choice.build) in install and "--no-cache-dir" in install
    words = [word for word, _ in instructions]
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN")
    assert ("USER", "user") in instructions
    minor = here.python_minor or "3"
    assert instructions[0][1].startswith(f"python:{minor}") and "slim" in instructions[0][1]
    assert yaml.safe_load(made.compose)["services"]["training"]


def training(text: str) -> dict[str, object]:
    return dict(
        yaml.safe_load(docker.files(description.read(text)).compose)["services"]["training"]
    )


def test_nvidia() -> None:
    text = "gpu=rtx4090,driver=535,os=ubuntu22.04,python=3.11"
    service = training(text)
    assert service["deploy"] == {
        "resources": {
            "reservations": {
                "devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
            }
        }
    }
    assert service["shm_size"] == "8gb" and service["ipc"] == "private"
    assert service["ulimits"] == {"memlock": -1, "stack": 67108864}
    file = docker.files(description.read(text)).dockerfile
    assert "docker run --rm --gpus all --shm-size 8g" in file
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in file
    assert "HEALTHCHECK" in file and "nvidia-smi" in file


def test_rocm() -> None:
    text = "gpu=mi300x,rocm=6.4,os=ubuntu22.04,python=3.12"
    service = training(text)
    assert service["devices"] == ["/dev/kfd", "/dev/dri"]
    assert service["group_add"] == ["video", "${RENDER_GID:-992}"]
    assert "deploy" not in service
    file = docker.files(description.read(text)).dockerfile
    assert "--device /dev/kfd --device /dev/dri" in file and "NVIDIA" not in file


def test_cpu() -> None:
    service = training("os=ubuntu24.04,python=3.12")
    assert not {"deploy", "devices", "group_add"} & service.keys()
    file = docker.files(description.read("os=ubuntu24.04,python=3.12")).dockerfile
    assert "--gpus" not in file and "HEALTHCHECK" not in file


def test_the_python_is_one_that_the_build_has() -> None:
    made = docker.files(description.read("gpu=nvidia,capability=3.7,driver=470.256.02"))
    release = table.release(made.choice.version)
    assert made.choice.build == "cu118" and release is not None
    assert any(f"\nFROM python:{python}-slim\n" in made.dockerfile for python in release.pythons)


def test_no_container_for_what_has_no_build() -> None:
    with pytest.raises(UserError, match="JetPack"):
        docker.files(description.read("gpu=jetson-orin,os=ubuntu22.04"))
