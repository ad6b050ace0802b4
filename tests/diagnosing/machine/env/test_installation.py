"""The interpreter, and how torch was installed into it."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import commands, each, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.diagnosing.machine.env.env030_packages_installed_twice import USER_SITE
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Severity
from flatout.nouns.interpreter import Interpreter, Package
from machines import broken_ordinary
from machines.healthy import changed, container, interpreter, mac, windows, workstation
from machines.software import SITE, not_importable, with_packages

PIN = "nvidia-cudnn-cu12==9.10.2.21; platform_system == 'Linux'"


def cure(error: str, **changes: object) -> str:
    return commands(only("ENV022", changed(not_importable(workstation(), error), **changes)))


def test_a_missing_cuda_library_comes_with_the_same_torch_again() -> None:
    finding = only("ENV022", broken("cuda-library-missing"))
    assert "libcudart.so.12" in finding.title
    assert "torch==2.9.1 --force-reinstall" in commands(finding)


def test_a_foreign_library_is_taken_out_of_the_path() -> None:
    finding = only("ENV022", broken("library-path-shadows-nccl"))
    assert "ncclCommRegister" in finding.title
    assert "LD_LIBRARY_PATH=/opt/nccl/lib" in finding.evidence
    assert "unset LD_LIBRARY_PATH" in commands(finding)


def test_without_such_a_path_an_undefined_symbol_means_a_new_installation() -> None:
    assert "--force-reinstall" in cure("ImportError: libtorch_cuda.so: undefined symbol: ncclX")


def test_windows_gets_the_runtime() -> None:
    assert "Microsoft.VCRedist.2015+.x64" in commands(
        only("ENV022", broken("windows-without-runtime"))
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("ImportError: numpy.core.multiarray failed to import", "'numpy<2'"),
        ("ImportError: libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent", "'mkl<2024.1'"),
        ("ModuleNotFoundError: No module named 'typing_extensions'", "install typing-extensions"),
        ("ModuleNotFoundError: No module named 'torch._C'", "torch==2.9.1 --force-reinstall"),
        ("AttributeError: partially initialized module 'torch' has no 'nn'", "rename the file"),
        ("OSError: something nobody has seen", "torch==2.9.1 --force-reinstall"),
    ],
)
def test_each_cause_has_its_cure(error: str, expected: str) -> None:
    assert expected in cure(error)


def test_a_missing_library_of_the_system_is_not_one_of_torch() -> None:
    error = "ImportError: libgomp.so.1: cannot open shared object file: No such file or directory"
    assert cure(error).endswith("sudo apt-get install -y libgomp1")
    assert "nix-ld" in commands(only("ENV022", broken_ordinary.nixos_without_libraries()))


def test_a_folder_that_is_gone() -> None:
    assert cure("Intel oneMKL FATAL ERROR: Cannot load libtorch_cpu.so.").startswith("cd ")


def test_both_copies_go_and_one_comes() -> None:
    finding = only("ENV030", broken("torch-from-conda-and-pip"))
    assert "pytorch 2.5.1" in finding.evidence
    assert "torch 2.9.1" in finding.evidence
    text = commands(finding)
    assert (
        text.index("conda remove") < text.index("pip uninstall -y torch") < text.rindex("install")
    )


def test_one_copy_and_other_packages_do_not_count() -> None:
    copies = broken("torch-from-conda-and-pip").interpreter.duplicates
    assert not findings(
        "ENV030", broken("torch-from-conda-and-pip", interpreter__duplicates=copies[:1])
    )
    other = tuple(type(copy)("numpy", "2.0", copy.location, "pip") for copy in copies)
    assert not findings("ENV030", broken("torch-from-conda-and-pip", interpreter__duplicates=other))


def without_torch(version: str, **facts: object) -> object:
    return changed(workstation(), interpreter=interpreter(None, version=version, **facts))


def test_too_new_is_an_error() -> None:
    finding = only("ENV034", broken("python-too-new"))
    assert finding.severity is Severity.ERROR
    assert "-m venv .venv" in commands(finding)


def test_too_old_for_the_newest_still_has_an_old_release() -> None:
    finding = only("ENV034", without_torch("3.8.10"))
    assert finding.severity is Severity.WARNING
    assert "the last one for it is 2.4.1" in finding.evidence


def test_a_torch_that_works_is_a_note() -> None:
    finding = only("ENV034", broken("python-left-behind"))
    assert finding.severity is Severity.NOTE
    assert "the last one for it is 2.8.0" in finding.evidence


def test_conda_and_windows_have_their_own_way() -> None:
    conda = without_torch("3.16.0", conda=True)
    assert "conda create --name torch python=3.1" in commands(only("ENV034", conda))


def test_supported_and_unknown_ones() -> None:
    unknown = changed(workstation(), interpreter=interpreter(None, version=None))
    assert not findings("ENV034", unknown)


def test_an_old_glibc_with_a_release_that_still_fits() -> None:
    finding = only("ENV035", broken("old-glibc"))
    assert finding.severity is Severity.WARNING
    assert "glibc 2.17; torch" in finding.evidence
    assert "torch==2.6.0" in commands(finding)
    assert "# or: docker run --rm -it --gpus all" in commands(finding)


def test_an_old_glibc_under_a_gpu_that_needs_a_new_release() -> None:
    machine = broken("old-glibc", gpus=broken("rtx-5090-with-old-torch").gpus)
    finding = only("ENV035", machine)
    assert finding.severity is Severity.ERROR
    assert finding.cure.commands == ("docker run --rm -it --gpus all ubuntu:24.04",)


def test_musl() -> None:
    finding = only("ENV035", broken("alpine"))
    assert "musl" in finding.title
    assert "--gpus" not in commands(finding)


def test_in_a_container_the_image_is_wrong() -> None:
    machine = changed(container(), system__libc="musl 1.2.5", interpreter__torch=None)
    assert "# build the image" in commands(only("ENV035", machine))


def test_a_torch_that_works_there_is_a_note() -> None:
    finding = only("ENV035", changed(workstation(), system__libc="glibc 2.17"))
    assert finding.severity is Severity.NOTE
    assert "works here" in finding.evidence


def test_a_32_bit_python() -> None:
    machine = changed(windows(), interpreter__bits=32, interpreter__torch=None)
    assert "--architecture x64" in commands(only("ENV035", machine))


def test_old_windows_and_old_macos() -> None:
    seven = changed(windows(), system__release="6.1.7601", interpreter__torch=None)
    assert "needs 10.0" in only("ENV035", seven).evidence
    old = changed(mac(), system__distribution_version="10.15", interpreter__torch=None)
    finding = only("ENV035", old)
    assert f"needs {pytorch.newest().macos}" in finding.evidence
    assert finding.severity is Severity.ERROR
    less_old = changed(old, system__distribution_version="13.7.4")
    assert only("ENV035", less_old).severity is Severity.WARNING


def test_a_mac_with_an_intel_processor() -> None:
    machine = changed(mac(), system__architecture="x86_64", interpreter__torch=None)
    finding = only("ENV035", machine)
    assert "torch ends with 2.2.2" in finding.title
    assert "'numpy<2'" in commands(finding)
    assert not findings("ENV035", changed(machine, system__rosetta=True))


def test_the_folder_is_hidden_and_torch_comes_into_the_environment() -> None:
    finding = only("ENV030", broken("user-site-in-front"))
    assert "torch 2.9.1" in finding.evidence
    assert "/home/user/.local/lib/python3.12/site-packages" in finding.evidence
    text = commands(finding)
    assert "PYTHONNOUSERSITE=1" in text
    assert "conda install" in text


def test_with_a_copy_in_the_environment_hiding_is_enough() -> None:
    own = Package("torch", "2.9.1", "/home/user/miniconda3/envs/job/lib/python3.12", "pip")
    copies = (broken("user-site-in-front").interpreter.packages[0], own)
    assert "conda install" not in commands(
        only("ENV030", broken("user-site-in-front", interpreter__duplicates=copies))
    )


@pytest.mark.parametrize(
    "change",
    [
        {"interpreter__user_site": False},
        {"interpreter__user_site": None},
        {"interpreter__conda": False},
        {"interpreter__packages__all__location": "/opt/conda/lib/python3.12/site-packages"},
        {"interpreter__packages__all__location": None},
    ],
    ids=str,
)
def test_nothing_otherwise(change: dict[str, object]) -> None:
    assert not findings("ENV030", broken("user-site-in-front", **change))


def test_the_folder_on_each_system() -> None:
    assert USER_SITE.search("C:\\Users\\user\\AppData\\Roaming\\Python\\Python312\\site-packages")
    assert USER_SITE.search("/Users/user/Library/Python/3.12/lib/python/site-packages")
    assert not USER_SITE.search("/home/user/.local/share/uv/tools/x/lib/python3.12/site-packages")


def with_cudnn(version: str, name: str = "nvidia-cudnn-cu12") -> object:
    return with_packages(
        workstation(),
        Package(name, version, SITE, "pip"),
        interpreter__torch__requires=(PIN, "triton==3.5.1", "not a requirement =="),
    )


def test_torchvision_of_another_release() -> None:
    finding = only("ENV051", broken("torchvision-of-another-release"))
    assert finding.severity is Severity.ERROR
    assert "torchvision 0.20.1, fits: 0.24" in finding.evidence
    assert "'torchvision==0.24.*' --index-url" in commands(finding)
    assert "/whl/cu128" in commands(finding)


def test_the_right_ones() -> None:
    right = (Package("torchvision", "0.24.1"), Package("torchaudio", "2.9.1"))
    assert not findings("ENV051", with_packages(workstation(), *right))


def test_torch_of_conda_gets_its_parts_from_conda() -> None:
    machine = broken(
        "torchvision-of-another-release",
        interpreter__conda=True,
        interpreter__torch__installer="conda",
    )
    assert "conda install" in commands(only("ENV051", machine))


def test_a_cuda_library_in_another_version() -> None:
    finding = only("ENV051", with_cudnn("9.5.1.17"))
    assert finding.severity is Severity.WARNING
    assert "nvidia-cudnn-cu12 9.5.1.17, torch asks for 9.10.2.21" in finding.evidence
    assert "install nvidia-cudnn-cu12==9.10.2.21" in commands(finding)


def test_of_a_torch_that_is_not_in_the_table_nothing_is_said() -> None:
    machine = broken("torchvision-of-another-release", interpreter__torch__version="9.9.9")
    assert not findings("ENV051", machine)


def test_the_environments_own_python() -> None:
    finding = only("ENV052", broken("python-outside-environment"))
    assert finding.severity is Severity.WARNING
    assert "VIRTUAL_ENV=/home/user/venv" in finding.evidence
    assert "/usr/bin/python3" in finding.evidence
    assert commands(finding).startswith("/home/user/venv/bin/python")


def test_another_environments_python_may_be_meant() -> None:
    machine = changed(workstation(), environment={"VIRTUAL_ENV": "/home/user/other"})
    assert only("ENV052", machine).severity is Severity.NOTE


def test_a_folder_whose_name_starts_alike_is_another() -> None:
    machine = changed(workstation(), environment={"VIRTUAL_ENV": "/home/user/ven"})
    assert findings("ENV052", machine)


def test_conda_base_under_an_environment_in_use_is_no_matter() -> None:
    base = {"CONDA_PREFIX": "/home/user/miniconda3"}
    assert not findings("ENV052", changed(workstation(), environment=base))
    assert findings("ENV052", broken("python-outside-environment", environment=base))


def test_inside_it_also_on_windows_with_its_ways_to_write_paths() -> None:
    inside = {"VIRTUAL_ENV": "c:/users/User/venv"}
    assert not findings("ENV052", changed(windows(), environment=inside))
    outside = {"VIRTUAL_ENV": "C:\\Users\\user\\other"}
    text = commands(only("ENV052", changed(windows(), environment=outside)))
    assert "C:\\Users\\user\\other\\Scripts\\python.exe" in text


def test_the_link_to_the_shop() -> None:
    finding = only("ENV075", broken_ordinary.shop_link())
    assert finding.severity is Severity.ERROR
    assert "WindowsApps" in finding.evidence and "9009" in finding.evidence
    assert "winget install Python.Python." in commands(finding)


def test_too_old_to_be_asked() -> None:
    finding = only("ENV075", broken_ordinary.old_python())
    assert finding.title.startswith("Python 3.8.10 does not answer")
    assert "-m venv .venv" in commands(finding)


def test_no_python_at_all() -> None:
    python = Interpreter(executable="/bin/ls", error="ended with exit code 0")
    finding = only("ENV075", changed(workstation(), interpreter=python))
    assert "/bin/ls: ended with exit code 0" in finding.evidence
    assert "flatout doctor --python PATH" in commands(finding)


def test_a_slow_one_is_a_note() -> None:
    python = Interpreter(
        executable="/nfs/venv/bin/python", error="no answer within 1.53 s", timed_out=True
    )
    finding = only("ENV075", changed(workstation(), interpreter=python))
    assert finding.severity is Severity.NOTE
    assert commands(finding) == "flatout doctor --deep"


SILENT: dict[str, list[Any]] = {
    "ENV022": [
        # nothing where the import was not tried
        broken("cuda-library-missing", interpreter__torch__imported=None),
    ],
    "ENV034": [
        # a torch built by hand for a new python works
        changed(workstation(), interpreter__version="3.16.0"),
    ],
    "ENV035": [],
    "ENV051": [
        # the version asked for and libraries of another cuda are fine
        with_cudnn("9.10.2.21"),
        with_cudnn("9.5.1.17", "nvidia-cudnn-cu11"),
    ],
    "ENV052": [
        # nothing where it is not known
        broken("python-outside-environment", interpreter__executable=None),
        broken("python-outside-environment", environment=None),
        broken("python-outside-environment", interpreter__virtual_environment=None),
    ],
    "ENV075": [
        changed(workstation(), interpreter__error="ended with exit code 139"),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
