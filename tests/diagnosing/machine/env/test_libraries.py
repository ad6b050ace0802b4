"""Toolkits, libraries and compilers beside torch."""

from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from flatout.nouns.machine import CudaToolkit
from machines.healthy import changed, cpu_server, mac, windows, workstation
from machines.software import library, toolkit


def test_another_major_is_a_warning() -> None:
    finding = only("ENV026", broken("toolkit-of-another-major"))
    assert finding.severity is Severity.WARNING
    assert "11.8" in finding.evidence
    assert "12.8" in finding.evidence


def test_another_minor_is_a_note() -> None:
    assert only("ENV026", broken("toolkit-of-another-minor")).severity is Severity.NOTE


def test_an_update_of_the_same_minor_fits() -> None:
    same = CudaToolkit("/usr/local/cuda-12.8", "12.8.1", on_path=0)
    assert not findings("ENV026", changed(workstation(), toolkits=(same,)))


def test_the_default_folder_counts_and_another_that_nothing_names_does_not() -> None:
    default = CudaToolkit("/usr/local/cuda", "11.8")
    assert findings("ENV026", changed(workstation(), toolkits=(default,)))
    assert not findings("ENV026", changed(workstation(), toolkits=(toolkit("11.8"),)))


def test_nothing_for_a_torch_without_cuda() -> None:
    toolkits = (toolkit("11.8", on_path=0),)
    assert not findings("ENV026", changed(cpu_server(), toolkits=toolkits))


def test_the_one_that_fits_is_named() -> None:
    finding = only("ENV026", broken("wrong-toolkit-first"))
    assert "CUDA_HOME names it" in finding.evidence
    assert "export CUDA_HOME=/usr/local/cuda-12.8" in commands(finding)
    assert 'export PATH="/usr/local/cuda-12.8/bin:$PATH"' in commands(finding)


def test_on_windows_the_variable_is_cuda_path() -> None:
    toolkits = (toolkit("11.8", on_path=0), toolkit("12.8"))
    text = commands(only("ENV026", changed(windows(), toolkits=toolkits)))
    assert "CUDA_PATH" in text
    assert "$env:Path" in text


def test_another_is_named_only_if_it_fits_and_is_not_in_front() -> None:
    none_fits = (toolkit("11.8", on_path=0), toolkit("12.4"))
    finding = only("ENV026", changed(workstation(), toolkits=none_fits))
    assert finding.title.startswith("nvcc is CUDA 11.8")
    right = (toolkit("12.8", on_path=0), toolkit("11.8", on_path=1))
    assert not findings("ENV026", changed(workstation(), toolkits=right))


def test_the_home_variable_goes_before_the_path() -> None:
    toolkits = (toolkit("11.8", on_path=0), toolkit("12.8", cuda_home=True))
    assert not findings("ENV026", changed(workstation(), toolkits=toolkits))


def test_another_release_in_the_library_path() -> None:
    finding = only("ENV028", broken("system-cudnn-in-front"))
    assert "/opt/nvidia/lib/libcudnn.so.9.1.0 is 9.1.0" in finding.evidence
    assert "torch brings 9.10.2.21" in finding.evidence
    assert "unset LD_LIBRARY_PATH" in commands(finding)


def test_the_rest_of_the_path_stays() -> None:
    path = {"LD_LIBRARY_PATH": "/opt/nvidia/lib/:/opt/mpi/lib"}
    assert "export LD_LIBRARY_PATH=/opt/mpi/lib" in commands(
        only("ENV028", broken("system-cudnn-in-front", environment=path))
    )


def test_what_torch_asks_for_counts_where_the_wheel_is_not_listed() -> None:
    asked = broken("system-cudnn-in-front").interpreter.packages[:2]
    machine = broken(
        "system-cudnn-in-front",
        interpreter__packages=asked,
        interpreter__torch__requires=("nvidia-cudnn-cu12==9.5.1.17; platform_system == 'Linux'",),
    )
    assert "torch brings 9.5.1.17" in only("ENV028", machine).evidence


def test_another_major_and_the_same_version_do_not_clash() -> None:
    for version in ("8.9.7", "9.10.2"):
        assert not findings(
            "ENV028", broken("system-cudnn-in-front", libraries=(library("cudnn", version),))
        )


def test_a_version_of_one_number_says_too_little() -> None:
    assert not findings(
        "ENV028", broken("system-cudnn-in-front", libraries=(library("cudnn", "9"),))
    )


def test_what_only_the_loader_finds_comes_after_torchs_own() -> None:
    assert not findings("ENV028", broken("system-cudnn-in-front", libraries__0__source="loader"))


def test_preloaded_it_is_what_runs() -> None:
    finding = only("ENV028", broken("nccl-preloaded"))
    assert finding.severity is Severity.WARNING
    assert "NCCL 2.18.3 in LD_PRELOAD" in finding.title
    assert "unset LD_PRELOAD" in commands(finding)


def test_in_the_library_path_torchs_own_path_comes_first() -> None:
    path = {"LD_LIBRARY_PATH": "/opt/nvidia/lib"}
    assert only("ENV028", broken("nccl-preloaded", environment=path)).severity is Severity.NOTE


def test_a_torch_without_nccl_wheel_takes_that_of_the_path() -> None:
    machine = broken("nccl-preloaded", environment={"LD_LIBRARY_PATH": "/opt/nvidia/lib"})
    bare = broken(
        "nccl-preloaded",
        environment=machine.environment,
        interpreter__packages=machine.interpreter.packages[:2],
    )
    assert only("ENV028", bare).severity is Severity.WARNING


def test_the_same_version_is_no_matter() -> None:
    assert not findings("ENV028", broken("nccl-preloaded", libraries=(library("nccl", "2.27.5"),)))


def test_the_distributions_compiler() -> None:
    finding = only("ENV031", broken("no-compiler"))
    assert finding.severity is Severity.WARNING
    assert "build-essential" in commands(finding)


def test_conda_can_bring_one() -> None:
    assert "gxx" in commands(only("ENV031", broken("no-compiler", interpreter__conda=True)))


def test_a_note_on_windows() -> None:
    finding = only("ENV031", changed(windows(), interpreter__compiler_searched=True))
    assert finding.severity is Severity.NOTE
    assert "BuildTools" in commands(finding)


def test_nothing_where_none_was_looked_for_or_torch_cannot_compile() -> None:
    assert not findings("ENV031", broken("no-compiler", interpreter__compiler_searched=False))
    assert not findings("ENV031", broken("no-compiler", interpreter__torch__version="1.13.1"))
    assert not findings("ENV031", broken("no-compiler", interpreter__torch=None))


def test_the_package_of_this_python() -> None:
    finding = only("ENV032", broken("no-python-headers"))
    assert "3.12.3" in finding.title
    assert "python3.12-dev" in commands(finding)


def test_nothing_where_it_is_not_known_or_not_needed() -> None:
    assert not findings("ENV032", broken("no-python-headers", interpreter__headers=None))
    assert not findings("ENV032", broken("no-python-headers", interpreter__torch=None))
    assert not findings("ENV032", broken("no-python-headers", interpreter__torch__version="1.13.1"))


def test_the_triton_of_this_release() -> None:
    finding = only("ENV033", broken("no-triton"))
    assert finding.severity is Severity.WARNING
    assert "install triton==3.5" in commands(finding)


def test_windows_is_told_after_a_failed_compilation_only() -> None:
    assert not findings("ENV033", windows())
    tried = changed(
        windows(),
        interpreter__torch__compile_works=False,
        interpreter__torch__compile_error="TritonMissing: Cannot find a working triton",
    )
    finding = only("ENV033", tried)
    assert finding.severity is Severity.NOTE
    assert "triton-windows==3.5.*" in commands(finding)


def test_nothing_for_cpu_mac_old_torch_and_other_processors() -> None:
    assert not findings("ENV033", cpu_server())
    assert not findings("ENV033", mac())
    assert not findings("ENV033", broken("no-triton", interpreter__torch__version="1.13.1"))
    assert not findings("ENV033", broken("no-triton", system__architecture="aarch64"))
