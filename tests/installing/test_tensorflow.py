"""TensorFlow by Python, system and GPU."""

from __future__ import annotations

import pytest

from flatout.installing import description, tensorflow
from flatout.installing.script import Script
from flatout.knowledge.compat import tensorflow as table
from flatout.nouns.errors import UserError
from installing import grammar

NEWEST = table.releases()[-1]
PYTHON = NEWEST.pythons[-1]


def script(text: str) -> Script:
    here = description.read(text)
    made = tensorflow.script(here)
    (grammar.powershell if here.system == "Windows" else grammar.bash)(made.commands)
    assert made.why
    release = table.release(made.version)
    assert release is not None
    assert here.python_minor in (None, *release.pythons)
    return made


def install(made: Script) -> str:
    return next(line for line in made.commands if "pip install" in line)


def test_linux_with_a_gpu_brings_cuda_along() -> None:
    made = script(f"gpu=a100,driver=580.95.05,os=ubuntu24.04,python={PYTHON}")
    assert made.build == "and-cuda" and made.driver_needed is None
    assert f"'tensorflow[and-cuda]=={NEWEST.version}.*'" in install(made)
    assert "list_physical_devices" in made.commands[-1]


def test_an_old_driver_gets_a_release_that_runs_on_it_or_a_new_driver() -> None:
    old = script("gpu=a100,driver=470.256.02,os=ubuntu22.04,python=3.10")
    release = table.release(old.version)
    assert release is not None and release.cuda is not None and release.cuda.startswith("11.")
    assert old.driver_needed is None
    new = script("gpu=a100,driver=470.256.02,os=ubuntu22.04,python=3.12")
    assert new.driver_needed is not None
    assert any("nvidia-driver-" in line for line in new.commands)


def test_linux_without_a_gpu() -> None:
    made = script(f"os=ubuntu24.04,python={PYTHON}")
    assert made.build == "cpu" and "'tensorflow-cpu==" in install(made)
    arm = script(f"os=ubuntu24.04,arch=arm64,python={PYTHON}")
    assert "'tensorflow==" in install(arm)


def test_arm_with_a_gpu_is_for_the_cpu_and_says_so() -> None:
    made = script(f"gpu=gh200,driver=580.95.05,os=ubuntu24.04,python={PYTHON}")
    assert made.build == "cpu" and "container" in made.why[0]


def test_windows() -> None:
    old = script("gpu=rtx4090,driver=535,os=windows,python=3.10")
    assert (old.version, old.build) == ("2.10", "gpu")
    assert "'numpy<2'" in install(old) and any("WSL 2" in reason for reason in old.why)
    new = script("gpu=rtx4090,driver=535,os=windows,python=3.12")
    assert new.build == "cpu" and "WSL 2" in new.why[0]
    wsl = script("gpu=rtx4090,driver=581.80,os=wsl,python=3.12")
    assert wsl.build == "and-cuda"


def test_macs() -> None:
    made = script(f"os=macos,python={PYTHON}")
    assert made.build == "metal" and install(made).endswith("tensorflow-metal")
    intel = script("os=macos,arch=x86_64,python=3.11")
    assert intel.version == tensorflow.LAST_ON_INTEL_MACS and intel.build == "cpu"


def test_amd_is_sent_to_amd() -> None:
    made = script(f"gpu=mi300x,os=ubuntu24.04,python={PYTHON}")
    assert made.build == "cpu" and "rocm" in made.why[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [("python=3.19", "3.19"), ("os=windows,arch=arm64", "ARM"), ("libc=musl 1.2", "musl")],
)
def test_what_cannot_be(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        tensorflow.script(description.read(text))
    assert said in caught.value.message and caught.value.next_step


def test_a_mirror() -> None:
    made = tensorflow.script(description.read("os=linux"), "https://mirror.example/simple")
    assert install(made).endswith("--index-url https://mirror.example/simple")


def test_an_old_gpu_gets_a_release_that_holds_its_kernels() -> None:
    maxwell = script("capability=5.2,driver=580.95.05,os=ubuntu22.04,python=3.11")
    assert maxwell.version == "2.16"
    pascal = script("capability=6.1,driver=580.95.05,os=ubuntu22.04,python=3.11")
    assert pascal.version == NEWEST.version
