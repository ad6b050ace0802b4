"""environment.yml: YAML that conda reads, with the packages of conda-forge or pip's wheels."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from flatout.installing import answers, description
from installing import grammar


def read(text: str) -> tuple[dict[str, Any], str]:
    file, choice = answers.conda_environment(description.read(text))
    environment = dict(yaml.safe_load(file))
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    assert environment["name"] == "training"
    for item in environment["dependencies"]:
        if isinstance(item, dict):
            grammar.requirements("\n".join(item["pip"]))
    return environment, choice.build


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu=rtx4090,driver=535,python=3.11", ["python=3.11", "pytorch-gpu", "cuda-version=12"]),
        ("gpu=h100,driver=580.95.05,python=3.12.4", ["python=3.12", "cuda-version=13"]),
        ("gpu=a100,driver=450,python=3.10", ["pytorch-gpu<=2.6.0", "cuda-version=11"]),
        ("os=windows,python=3.12", ["pytorch-cpu"]),
        ("os=macos,python=3.12", ["pytorch"]),
    ],
)
def test_from_conda_forge(text: str, expected: list[str]) -> None:
    environment, _ = read(text)
    assert set(expected) <= set(environment["dependencies"])


def test_rocm_and_xpu_come_by_pip() -> None:
    for text, build in (("gpu=mi300x,rocm=6.4,python=3.12", "rocm6.4"), ("gpu=arc-b580", "xpu")):
        environment, chosen = read(text)
        assert chosen == build
        pip = environment["dependencies"][-1]["pip"]
        assert pip[0].startswith("--extra-index-url ") and pip[0].endswith(f"/{build}")
        assert pip[1].startswith("torch==") and pip[1].endswith(f"+{build}")
        assert "pip" in environment["dependencies"]


def test_a_python_is_always_named() -> None:
    environment, _ = read("gpu=rtx4090,driver=580.95.05")
    assert environment["dependencies"][0].startswith("python=3.")
    old, _ = read("gpu=a100,driver=450")
    assert old["dependencies"][0] == "python=3.12"  # of 2.6, which is for 3.9 to 3.13


def test_without_a_driver_conda_is_told_which_cuda() -> None:
    file, _ = answers.conda_environment(description.read("gpu=rtx4090,python=3.12"))
    assert "# create: CONDA_OVERRIDE_CUDA=13." in file
    assert "# driver 580 or newer is needed" in file
