"""Toolkits, libraries and compilers beside torch."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import Told, each, each_of, findings, only, told
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import changed, windows
from machines.software import library


def test_another_major_and_the_same_version_do_not_clash() -> None:
    for version in ("8.9.7", "9.10.2"):
        assert not findings(
            "ENV028", broken("system-cudnn-in-front", libraries=(library("cudnn", version),))
        )


def test_a_torch_without_nccl_wheel_takes_that_of_the_path() -> None:
    machine = broken("nccl-preloaded", environment={"LD_LIBRARY_PATH": "/opt/nvidia/lib"})
    bare = broken(
        "nccl-preloaded",
        environment=machine.environment,
        interpreter__packages=machine.interpreter.packages[:2],
    )
    assert only("ENV028", bare).severity is Severity.WARNING


TOLD = [
    told("another release in the library path", "ENV028",
         broken("system-cudnn-in-front"), "/opt/nvidia/lib/libcudnn.so.9.1.0 is 9.1.0",
         "torch brings 9.10.2.21", "unset LD_LIBRARY_PATH"),
    told("the rest of the path stays", "ENV028",
         broken("system-cudnn-in-front",
         environment={"LD_LIBRARY_PATH": "/opt/nvidia/lib/:/opt/mpi/lib"}),
         "export LD_LIBRARY_PATH=/opt/mpi/lib"),
    told("what torch asks for counts where the wheel is not listed", "ENV028",
         broken("system-cudnn-in-front",
         interpreter__packages=broken("system-cudnn-in-front").interpreter.packages[:2],
         interpreter__torch__requires=("nvidia-cudnn-cu12==9.5.1.17; platform_system == 'Linux'",)),
         "torch brings 9.5.1.17"),
    told("preloaded it is what runs", "ENV028",
         broken("nccl-preloaded"), "NCCL 2.18.3 in LD_PRELOAD", "unset LD_PRELOAD",
         severity=Severity.WARNING),
    told("in the library path torchs own path comes first", "ENV028",
         broken("nccl-preloaded", environment={"LD_LIBRARY_PATH": "/opt/nvidia/lib"}),
         severity=Severity.NOTE),
    told("the distributions compiler", "ENV031",
         broken("no-compiler"), "build-essential", severity=Severity.WARNING),
    told("conda can bring one", "ENV031", broken("no-compiler", interpreter__conda=True), "gxx"),
    told("a note on windows", "ENV031",
         changed(windows(), interpreter__compiler_searched=True), "BuildTools",
         severity=Severity.NOTE),
    told("the package of this python", "ENV031",
         broken("no-python-headers"), "3.12.3", "python3.12-dev"),
    told("the triton of this release", "ENV031",
         broken("no-triton"), "install triton==3.5", severity=Severity.WARNING),
    told("windows is told after a failed compilation only", "ENV031",
         changed(windows(), interpreter__torch__compile_works=False,
         interpreter__torch__compile_error="TritonMissing: Cannot find a working triton"),
         "triton-windows==3.5.*", severity=Severity.NOTE),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: Told) -> None:
    case.holds()


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
