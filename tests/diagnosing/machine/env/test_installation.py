"""The interpreter, and how torch was installed into it."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import Told, commands, each, each_of, findings, only, told
from diagnosing.machine.env.software_facts import broken
from flatout.diagnosing.machine.env.env030_packages_installed_twice import USER_SITE
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Severity
from flatout.nouns.interpreter import Interpreter, Package
from machines import broken_ordinary
from machines.healthy import changed, container, interpreter, mac, windows, workstation
from machines.software import SITE, not_importable, with_packages

BOTH_COPIES = (
    broken("user-site-in-front").interpreter.packages[0],
    Package("torch", "2.9.1", "/home/user/miniconda3/envs/job/lib/python3.12", "pip"),
)
SLOW = Interpreter(
    executable="/nfs/venv/bin/python", error="no answer within 1.53 s", timed_out=True
)
PIN = "nvidia-cudnn-cu12==9.10.2.21; platform_system == 'Linux'"


def cure(error: str, **changes: object) -> str:
    return commands(only("ENV022", changed(not_importable(workstation(), error), **changes)))


def test_without_such_a_path_an_undefined_symbol_means_a_new_installation() -> None:
    assert "--force-reinstall" in cure("ImportError: libtorch_cuda.so: undefined symbol: ncclX")


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


def test_old_windows_and_old_macos() -> None:
    seven = changed(windows(), system__release="6.1.7601", interpreter__torch=None)
    assert "needs 10.0" in only("ENV034", seven).evidence
    old = changed(mac(), system__distribution_version="10.15", interpreter__torch=None)
    finding = only("ENV034", old)
    assert f"needs {pytorch.newest().macos}" in finding.evidence
    assert finding.severity is Severity.ERROR
    less_old = changed(old, system__distribution_version="13.7.4")
    assert only("ENV034", less_old).severity is Severity.WARNING


def test_a_mac_with_an_intel_processor() -> None:
    machine = changed(mac(), system__architecture="x86_64", interpreter__torch=None)
    finding = only("ENV034", machine)
    assert "torch ends with 2.2.2" in finding.title
    assert "'numpy<2'" in commands(finding)
    assert not findings("ENV034", changed(machine, system__rosetta=True))


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


def test_conda_base_under_an_environment_in_use_is_no_matter() -> None:
    base = {"CONDA_PREFIX": "/home/user/miniconda3"}
    assert not findings("ENV052", changed(workstation(), environment=base))
    assert findings("ENV052", broken("python-outside-environment", environment=base))


TOLD = [
    told("a missing cuda library comes with the same torch again", "ENV022",
         broken("cuda-library-missing"), "libcudart.so.12", "torch==2.9.1 --force-reinstall"),
    told("a foreign library is taken out of the path", "ENV022",
         broken("library-path-shadows-nccl"), "ncclCommRegister", "LD_LIBRARY_PATH=/opt/nccl/lib",
         "unset LD_LIBRARY_PATH"),
    told("windows gets the runtime", "ENV022",
         broken("windows-without-runtime"), "Microsoft.VCRedist.2015+.x64"),
    told("too new is an error", "ENV034",
         broken("python-too-new"), "-m venv .venv", severity=Severity.ERROR),
    told("too old for the newest still has an old release", "ENV034",
         without_torch("3.8.10"), "the last one for it is 2.4.1", severity=Severity.WARNING),
    told("a torch that works is a note", "ENV034",
         broken("python-left-behind"), "the last one for it is 2.8.0", severity=Severity.NOTE),
    told("conda and windows have their own way", "ENV034",
         without_torch("3.16.0", conda=True), "conda create --name torch python=3.1"),
    told("an old glibc with a release that still fits", "ENV034",
         broken("old-glibc"), "glibc 2.17; torch", "torch==2.6.0",
         "# or: docker run --rm -it --gpus all", severity=Severity.WARNING),
    told("an old glibc under a gpu that needs a new release", "ENV034",
         broken("old-glibc", gpus=broken("rtx-5090-with-old-torch").gpus),
         "docker run --rm -it --gpus all ubuntu:24.04", severity=Severity.ERROR),
    told("musl", "ENV034", broken("alpine"), "musl", never=("--gpus",)),
    told("in a container the image is wrong", "ENV034",
         changed(container(), system__libc="musl 1.2.5", interpreter__torch=None),
         "# build the image"),
    told("a system comes before its python", "ENV034",
         broken("alpine", interpreter__version="3.16.0"), "musl"),
    told("a torch that works there is a note", "ENV034",
         changed(workstation(), system__libc="glibc 2.17"), "works here", severity=Severity.NOTE),
    told("a 32 bit python", "ENV034",
         changed(windows(), interpreter__bits=32, interpreter__torch=None), "--architecture x64"),
    told("with a copy in the environment hiding is enough", "ENV030",
         broken("user-site-in-front", interpreter__duplicates=BOTH_COPIES),
         never=("conda install",)),
    told("torchvision of another release", "ENV051",
         broken("torchvision-of-another-release"), "torchvision 0.20.1, fits: 0.24",
         "'torchvision==0.24.*' --index-url", "/whl/cu128", severity=Severity.ERROR),
    told("torch of conda gets its parts from conda", "ENV051",
         broken("torchvision-of-another-release", interpreter__conda=True,
         interpreter__torch__installer="conda"), "conda install"),
    told("a cuda library in another version", "ENV051",
         with_cudnn("9.5.1.17"), "nvidia-cudnn-cu12 9.5.1.17, torch asks for 9.10.2.21",
         "install nvidia-cudnn-cu12==9.10.2.21", severity=Severity.WARNING),
    told("the environments own python", "ENV052",
         broken("python-outside-environment"), "VIRTUAL_ENV=/home/user/venv", "/usr/bin/python3",
         "/home/user/venv/bin/python", severity=Severity.WARNING),
    told("another environments python may be meant", "ENV052",
         changed(workstation(), environment={"VIRTUAL_ENV": "/home/user/other"}),
         severity=Severity.NOTE),
    told("inside it also on windows with its ways to write paths", "ENV052",
         changed(windows(), environment={"VIRTUAL_ENV": 'C:\\Users\\user\\other'}),
         'C:\\Users\\user\\other\\Scripts\\python.exe'),
    told("the link to the shop", "ENV075",
         broken_ordinary.shop_link(), "WindowsApps", "9009", "winget install Python.Python.",
         severity=Severity.ERROR),
    told("too old to be asked", "ENV075",
         broken_ordinary.old_python(), "Python 3.8.10 does not answer", "-m venv .venv"),
    told("no python at all", "ENV075",
         changed(workstation(),
         interpreter=Interpreter(executable="/bin/ls", error="ended with exit code 0")),
         "/bin/ls: ended with exit code 0", "flatout doctor --python PATH"),
    told("a slow one is a note", "ENV075",
         changed(workstation(), interpreter=SLOW),
         "flatout doctor --deep", severity=Severity.NOTE),
    told("the folder is hidden and torch comes into the environment", "ENV030",
         broken("user-site-in-front"), "torch 2.9.1",
         "/home/user/.local/lib/python3.12/site-packages", "PYTHONNOUSERSITE=1", "conda install"),
    told("a folder whose name starts alike is another", "ENV052",
         changed(workstation(), environment={"VIRTUAL_ENV": "/home/user/ven"})),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: Told) -> None:
    case.holds()


SILENT: dict[str, list[Any]] = {
    "ENV022": [
        # nothing where the import was not tried
        broken("cuda-library-missing", interpreter__torch__imported=None),
    ],
    "ENV034": [
        # supported and unknown ones
        changed(workstation(), interpreter=interpreter(None, version=None)),
        # a torch built by hand for a new python works
        changed(workstation(), interpreter__version="3.16.0"),
    ],
    "ENV051": [
        # the right ones
        with_packages(
            workstation(), *(Package("torchvision", "0.24.1"), Package("torchaudio", "2.9.1"))
        ),
        # of a torch that is not in the table nothing is said
        broken("torchvision-of-another-release", interpreter__torch__version="9.9.9"),
        # the version asked for and libraries of another cuda are fine
        with_cudnn("9.10.2.21"),
        with_cudnn("9.5.1.17", "nvidia-cudnn-cu11"),
    ],
    "ENV052": [
        # inside it also on windows with its ways to write paths
        changed(windows(), environment={"VIRTUAL_ENV": "c:/users/User/venv"}),
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
