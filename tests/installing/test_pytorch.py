"""The right build for real situations, with the real tables; any description has an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from flatout.installing import description, pytorch
from flatout.installing.choice import Choice
from flatout.installing.target import Target
from flatout.knowledge import gpus
from flatout.knowledge.compat import pytorch as table
from flatout.nouns.errors import UserError
from installing import grammar

NEWEST = table.newest().newest_patch

# description -> version (None: the newest in the table), build or its beginning, driver to install
SITUATIONS: dict[str, tuple[str | None, str, str | None]] = {
    "gpu=a100,driver=450,os=ubuntu20.04,python=3.10": ("2.6.0", "cu118", None),
    "gpu=a100,driver=470.256.02,os=ubuntu20.04,python=3.10": ("2.6.0", "cu118", None),
    "gpu=rtx4090,driver=535,os=windows,python=3.11": ("2.14.1", "cu126", None),
    "gpu=rtx4090,driver=535.183.01,os=ubuntu22.04,python=3.11": ("2.14.1", "cu126", None),
    "gpu=rtx4090,driver=581.80,os=windows,python=3.12": (None, "cu13", None),
    "gpu=rtx4090,driver=581.80,os=wsl,python=3.12": (None, "cu13", None),
    "gpu=rtx4090,os=ubuntu24.04,python=3.12": (None, "cu13", "580"),
    "gpu=rtx5090,driver=570,os=ubuntu24.04,python=3.12": ("2.11.0", "cu128", None),
    "gpu=rtx5090,driver=550,os=ubuntu24.04,python=3.12": (None, "cu13", "580"),
    "gpu=gtx1080,driver=580.95.05,os=fedora41,python=3.12": ("2.14.1", "cu126", None),
    "gpu=gtx1080,os=ubuntu22.04,python=3.10": ("2.14.1", "cu126", "525.60.13"),
    "gpu=v100,driver=570.86.15,os=rocky9,python=3.11": ("2.14.1", "cu126", None),
    "gpu=t4,driver=580.95.05,os=ubuntu22.04,python=3.11": (None, "cu13", None),
    "gpu=h100,driver=525.60.13,os=ubuntu22.04,python=3.11": ("2.14.1", "cu126", None),
    "gpu=h100,driver=595.71.05,os=ubuntu22.04,python=3.11": (None, "cu13", None),
    "gpu=nvidia,capability=3.7,driver=470.256.02,python=3.10": ("2.6.0", "cu118", None),
    "gpu=nvidia,capability=3.7,python=3.10": ("2.6.0", "cu118", "450.80.02"),
    "gpu=gh200,driver=580.95.05,os=ubuntu22.04,python=3.12": (None, "cu13", None),
    "gpu=mi300x,rocm=6.4,os=ubuntu22.04,python=3.12": ("2.9.1", "rocm6.4", None),
    "gpu=mi300x,os=ubuntu22.04,python=3.12": (None, "rocm7", None),
    "gpu=rx7900xtx,os=windows,python=3.12": (NEWEST, "cpu", None),
    "gpu=arc-b580,os=ubuntu24.04,python=3.12": (NEWEST, "xpu", None),
    "gpu=arc-b580,os=windows,python=3.12": (NEWEST, "xpu", None),
    "gpu=m3,python=3.12": (NEWEST, "cpu", None),
    "os=macos14,arch=x86_64,python=3.11": ("2.2.2", "cpu", None),
    "os=ubuntu24.04,python=3.12": (NEWEST, "cpu", None),
    "gpu=a100,driver=535,os=ubuntu20.04,python=3.8": ("2.4.1", "cu121", None),
    "gpu=a100,driver=580.95.05,os=ubuntu24.04,python=3.14": (None, "cu13", None),
    "gpu=a100,driver=580.95.05,os=ubuntu24.04,python=3.13t": (None, "cu13", None),
    "gpu=a100,driver=535,os=rhel8,libc=2.17,python=3.10": ("2.6.0", "cu118", None),
}

REFUSED = {
    "gpu=rtx4090,os=ubuntu24.04,python=3.17": "Python 3.17",
    "gpu=rtx5090,driver=580.95.05,os=ubuntu20.04,python=3.8": "kernels for GeForce RTX 5090",
    "gpu=jetson-orin,os=ubuntu22.04,python=3.10": "JetPack",
    "os=windows,arch=arm64,python=3.12": "windows-arm64",
    "gpu=nvidia,capability=3.0,driver=470.256.02,python=3.10": "compute capability 3.0",
    "os=ubuntu22.04,libc=musl 1.2.4,python=3.12": "musl",
    "os=ubuntu22.04,libc=2.12,python=3.12": "glibc 2.12 is too old",
    "os=macos10.15,arch=arm64,python=3.12": "macOS 10.15 is too old",
}


@pytest.mark.parametrize("text", SITUATIONS)
def test_the_right_build(text: str) -> None:
    version, build, needed = SITUATIONS[text]
    here = description.read(text)
    choice = pytorch.choose(here)
    assert choice.build.startswith(build)
    assert choice.driver_needed == needed
    assert version in (None, choice.version)
    assert choice.why and all(reason.endswith((".", "/")) for reason in choice.why), choice.why
    lines = pytorch.commands(here)
    install = next(line for line in lines if "pip install" in line)
    assert f"torch=={choice.version}" in install
    if here.system != "Darwin":
        assert install.endswith(f"--index-url {table.index_url(choice.build)}")
    assert "import torch" in lines[-1]
    (grammar.powershell if here.system == "Windows" else grammar.bash)(lines)


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_is_refused_with_the_reason_and_a_way_out(text: str) -> None:
    with pytest.raises(UserError) as caught:
        pytorch.choose(description.read(text))
    assert REFUSED[text] in caught.value.message
    assert caught.value.next_step


def test_the_wheel_is_built_for_this_python_gpu_and_driver() -> None:
    here = description.read("gpu=rtx4090,driver=570.86.15,os=ubuntu22.04,python=3.11")
    choice = pytorch.choose(here)
    build = table.build(choice.version, choice.build)
    release = table.release(choice.version)
    assert build is not None and release is not None
    assert "3.11" in release.pythons
    assert table.supports(build.arch_list, (8, 9))
    assert "Driver 570.86.15 supports all of CUDA 12.6." in choice.why


def test_another_build_of_the_same_version_is_removed_first() -> None:
    here = description.read("gpu=rtx4090,driver=580.95.05,os=ubuntu24.04,python=3.12")
    choice = pytorch.choose(here)
    wrong = replace(here, user_has_torch=f"{choice.version}+cpu", executable="/v/bin/python")
    lines = pytorch.commands(wrong)
    assert lines[0] == "/v/bin/python -m pip uninstall -y torch torchvision"
    assert "pip install" in lines[1]
    right = replace(here, user_has_torch=f"{choice.version}+{choice.build}")
    assert not any("uninstall" in line for line in pytorch.commands(right))
    with_uv = pytorch.commands(replace(wrong, manager="uv"))
    assert with_uv[0] == "uv pip uninstall --python /v/bin/python torch torchvision"
    assert with_uv[1].startswith("uv pip install --python /v/bin/python torch==")


def test_the_python_of_the_system_is_left_alone() -> None:
    here = Target(
        python="3.12",
        distribution="ubuntu",
        executable="/usr/bin/python3",
        virtual_environment=False,
    )
    lines = pytorch.commands(here)
    assert lines[1] == "/usr/bin/python3 -m venv .venv"
    assert all(".venv/bin/python" in line for line in lines[2:])
    with_uv = pytorch.commands(replace(here, manager="uv"))
    assert "uv venv --python /usr/bin/python3 .venv" in with_uv
    inside = replace(here, container=True)
    assert pytorch.commands(inside)[0].startswith("/usr/bin/python3 -m pip install")


def test_paths_with_spaces_and_quotes() -> None:
    windows = Target(system="Windows", python="3.12", executable="C:\\My Py'thon\\python.exe")
    lines = pytorch.commands(windows)
    assert lines[0].startswith("& 'C:\\My Py''thon\\python.exe' -m pip install ")
    grammar.powershell(lines)
    linux = pytorch.commands(Target(python="3.12", executable="/a b/it's/python"))
    grammar.bash(linux)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu=rtx4090,driver=580.95.05,python=3.12", ("pytorch-gpu", "cuda-version=13")),
        ("gpu=rtx4090,driver=535,python=3.12", ("pytorch-gpu", "cuda-version=12")),
        ("gpu=rtx4090,driver=535,os=windows,python=3.12", ("pytorch-gpu", "cuda-version=12")),
        ("gpu=a100,driver=450,python=3.10", ('"pytorch-gpu<=2.6.0"', "cuda-version=11")),
        ("os=ubuntu22.04,python=3.12", ("pytorch-cpu",)),
        ("os=macos,python=3.12", ("conda-forge pytorch torchvision",)),
    ],
)
def test_conda(text: str, expected: tuple[str, ...]) -> None:
    here = replace(
        description.read(text), manager="conda", executable="/opt/conda/envs/x/bin/python"
    )
    if here.system == "Windows":
        here = replace(here, executable="C:\\conda\\envs\\x\\python.exe")
    line = next(line for line in pytorch.commands(here) if "conda install" in line)
    assert "-c conda-forge" in line
    assert "-p " in line and "envs" in line
    assert all(word in line for word in expected), line
    (grammar.powershell if here.system == "Windows" else grammar.bash)([line])


def test_package_commands() -> None:
    here = Target(executable="/v/bin/python", python="3.12")
    assert pytorch.package_commands(
        here, ("triton",), ("nvidia-cudnn-cu12", "nvidia-nccl-cu12")
    ) == (
        "/v/bin/python -m pip uninstall -y nvidia-cudnn-cu12 nvidia-nccl-cu12",
        "/v/bin/python -m pip install triton",
    )
    assert pytorch.package_commands(here) == ()
    conda = replace(here, manager="conda", executable="/c/envs/x/bin/python")
    assert pytorch.package_commands(conda, ("numpy<2",), ("mkl",)) == (
        "conda remove -y -p /c/envs/x mkl",
        'conda install -y -p /c/envs/x -c conda-forge "numpy<2"',
    )


def test_requirements_are_requirements() -> None:
    for release in table.releases():
        names = pytorch.requirements(Choice(release.newest_patch, "cpu", ()))
        assert next(Requirement(name).name for name in names) == "torch"


ANY_VERSION = st.one_of(
    st.none(), st.sampled_from(["450", "470.256.02", "535", "550.54.14", "570.86.15", "595.71.05"])
)


@given(
    gpu=st.sampled_from([None, "nvidia", "amd", "intel", *(model.id for model in gpus.models())]),
    driver=ANY_VERSION,
    system=st.sampled_from(
        [
            *("ubuntu22.04", "debian12", "fedora", "rhel9", "amzn2023", "sles15", "arch", "wsl"),
            *("linux", "windows", "macos15"),
        ]
    ),
    arch=st.sampled_from([None, "x86_64", "arm64"]),
    python=st.sampled_from([None, "3.6", "3.8", "3.11", "3.12.3", "3.13t", "3.14", "3.19"]),
    manager=st.sampled_from(["pip", "uv", "conda"]),
)
def test_any_description_gives_lines_or_says_why_not(
    gpu: str | None,
    driver: str | None,
    system: str,
    arch: str | None,
    python: str | None,
    manager: str,
) -> None:
    pairs = {"gpu": gpu, "driver": driver, "os": system, "arch": arch, "python": python}
    text = ",".join(f"{key}={value}" for key, value in pairs.items() if value)
    try:
        here = replace(description.read(text), manager=manager)
        choice = pytorch.choose(here)
        lines = pytorch.commands(here)
    except UserError as error:
        assert error.message and error.next_step
        return
    release = table.release(choice.version)
    assert here.python_minor in (None, *release.pythons)
    build = table.build(choice.version, choice.build)
    assert build is not None and here.platform in build.systems
    if build.cuda and driver and choice.driver_needed is None:
        assert Version(driver if "." in driver else f"{driver}.999") >= Version("450.80.02")
    assert lines and all("\n" not in line for line in lines)
    if here.system == "Windows":
        grammar.powershell(lines)


def test_a_driver_that_dropped_the_gpu() -> None:
    choice = pytorch.choose(description.read("gpu=gtx1080,driver=591.44,os=windows,python=3.12"))
    assert "no longer supports" in choice.why[0] and choice.driver_needed == "580"


STAY = Target(
    vendor="nvidia",
    gpu="NVIDIA GeForce RTX 4090",
    compute_capability=(8, 9),
    driver="580.95.05",
    python="3.12.3",
    libc="glibc 2.39",
    user_has_torch="2.8.0+cpu",
)


def test_a_release_is_kept_where_one_of_its_builds_fits() -> None:
    choice = pytorch.choose(replace(STAY, release="2.8.0"))
    assert choice.version == "2.8.0"
    assert choice.build.startswith("cu")
    assert "PyTorch stays at 2.8." in choice.why
    assert pytorch.choose(STAY).version == table.newest().newest_patch


@pytest.mark.parametrize(
    "changes",
    [
        {"release": "2.5.1", "compute_capability": (12, 0), "gpu": "NVIDIA GeForce RTX 5090"},
        {"release": "1.13.1"},  # no wheel for this Python
        {"release": "9.9.9"},
    ],
)
def test_a_release_that_cannot_be_kept_is_left(changes: dict[str, object]) -> None:
    target = replace(STAY, **changes)  # type: ignore[arg-type]
    assert pytorch.choose(target) == pytorch.choose(replace(target, release=None))
