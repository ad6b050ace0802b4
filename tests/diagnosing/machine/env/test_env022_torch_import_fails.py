from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines import broken_ordinary
from machines.healthy import changed, workstation
from machines.software import not_importable

CHECK = "torch-import-fails"


def cure(error: str, **changes: object) -> str:
    return commands(only(CHECK, changed(not_importable(workstation(), error), **changes)))


def test_a_missing_cuda_library_comes_with_the_same_torch_again() -> None:
    finding = only(CHECK, broken("cuda-library-missing"))
    assert "libcudart.so.12" in finding.title
    assert "torch==2.9.1 --force-reinstall" in commands(finding)


def test_a_foreign_library_is_taken_out_of_the_path() -> None:
    finding = only(CHECK, broken("library-path-shadows-nccl"))
    assert "ncclCommRegister" in finding.title
    assert "LD_LIBRARY_PATH=/opt/nccl/lib" in finding.evidence
    assert "unset LD_LIBRARY_PATH" in commands(finding)


def test_without_such_a_path_an_undefined_symbol_means_a_new_installation() -> None:
    assert "--force-reinstall" in cure("ImportError: libtorch_cuda.so: undefined symbol: ncclX")


def test_windows_gets_the_runtime() -> None:
    assert "Microsoft.VCRedist.2015+.x64" in commands(
        only(CHECK, broken("windows-without-runtime"))
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


def test_nothing_where_the_import_was_not_tried() -> None:
    assert not findings(CHECK, workstation())
    assert not findings(CHECK, broken("cuda-library-missing", interpreter__torch__imported=None))


def test_a_missing_library_of_the_system_is_not_one_of_torch() -> None:
    error = "ImportError: libgomp.so.1: cannot open shared object file: No such file or directory"
    assert cure(error).endswith("sudo apt-get install -y libgomp1")
    assert "nix-ld" in commands(only(CHECK, broken_ordinary.nixos_without_libraries()))


def test_a_folder_that_is_gone() -> None:
    assert cure("Intel oneMKL FATAL ERROR: Cannot load libtorch_cpu.so.").startswith("cd ")
