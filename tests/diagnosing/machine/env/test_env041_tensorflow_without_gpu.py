from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.interpreter import Tensorflow
from flatout.nouns.machine import Library
from machines.healthy import changed, cpu_server, windows, workstation

CHECK = "tensorflow-without-gpu"
BARE = Tensorflow("2.20.0", "tensorflow", "12.5.1", "9", True, False)


def having(flow: Tensorflow, **changes: object) -> object:
    return changed(workstation(), interpreter__tensorflow=flow, **changes)


def test_the_package_for_cpu_is_replaced() -> None:
    text = commands(only(CHECK, broken("tensorflow-for-cpu")))
    assert "uninstall -y tensorflow-cpu" in text
    assert "'tensorflow[and-cuda]'" in text


def test_pip_brings_the_extra_also_in_a_conda_environment() -> None:
    assert "pip install" in commands(
        only(CHECK, broken("tensorflow-for-cpu", interpreter__conda=True))
    )


def test_native_windows_ended_with_2_10() -> None:
    finding = only(CHECK, broken("tensorflow-on-windows"))
    assert "wsl --install" in commands(finding)
    old = Tensorflow("2.10.1", "tensorflow")
    assert not findings(CHECK, changed(windows(), interpreter__tensorflow=old))


def test_without_cuda_libraries_anywhere() -> None:
    assert "nvidia-*" in only(CHECK, having(BARE)).evidence
    cudnn = Library("cudnn", "/usr/lib/libcudnn.so.9", "9.3.0", "loader")
    assert not findings(CHECK, having(BARE, libraries=(cudnn,)))
    assert not findings(CHECK, having(BARE, libraries=None))


def test_what_it_says_itself_counts_most() -> None:
    sees = changed(BARE, gpus_seen=1)
    assert not findings(CHECK, having(sees))
    blind = changed(BARE, gpus_seen=0, cuda_libraries=True)
    assert "sees no GPU" in only(CHECK, having(blind)).evidence


def test_nothing_without_a_gpu() -> None:
    cpu = Tensorflow("2.20.0", "tensorflow-cpu")
    assert not findings(CHECK, changed(cpu_server(), interpreter__tensorflow=cpu))
