"""Toolkits, libraries and compilers beside torch."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import commands, each, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import changed, windows
from machines.software import library


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


def test_the_package_of_this_python() -> None:
    finding = only("ENV031", broken("no-python-headers"))
    assert "3.12.3" in finding.title
    assert "python3.12-dev" in commands(finding)


def test_the_triton_of_this_release() -> None:
    finding = only("ENV031", broken("no-triton"))
    assert finding.severity is Severity.WARNING
    assert "install triton==3.5" in commands(finding)


def test_windows_is_told_after_a_failed_compilation_only() -> None:
    tried = changed(
        windows(),
        interpreter__torch__compile_works=False,
        interpreter__torch__compile_error="TritonMissing: Cannot find a working triton",
    )
    finding = only("ENV031", tried)
    assert finding.severity is Severity.NOTE
    assert "triton-windows==3.5.*" in commands(finding)


SILENT: dict[str, list[Any]] = {
    "ENV028": [
        # a version of one number says too little
        broken("system-cudnn-in-front", libraries=(library("cudnn", "9"),)),
        # what only the loader finds comes after torchs own
        broken("system-cudnn-in-front", libraries__0__source="loader"),
        # the same version is no matter
        broken("nccl-preloaded", libraries=(library("nccl", "2.27.5"),)),
    ],
    "ENV031": [
        # nothing where none was looked for or torch cannot compile
        broken("no-compiler", interpreter__compiler_searched=False),
        broken("no-compiler", interpreter__torch__version="1.13.1"),
        broken("no-compiler", interpreter__torch=None),
        # nothing where it is not known or not needed
        broken("no-python-headers", interpreter__torch=None),
        broken("no-python-headers", interpreter__torch__version="1.13.1"),
        # nothing for cpu mac old torch and other processors
        broken("no-triton", interpreter__torch__version="1.13.1"),
        broken("no-triton", system__architecture="aarch64"),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
