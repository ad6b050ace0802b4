"""The driver's answers through a fake of its library, and the real library where there is a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flatout.nouns.machine import Gpu
from flatout.probing import nvml


class FakeNvml:
    """As much of pynvml as is asked; `refused` names functions that raise."""

    class NVMLError(Exception):
        pass

    def __init__(self, names: list[Any], refused: set[str] | None = None) -> None:
        self.names = names
        self.refused = refused or set()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.calls.append(name)
            if name in self.refused:
                raise self.NVMLError(name)
            return self.answers(name, args)

        return call

    def answers(self, name: str, args: tuple[Any, ...]) -> Any:
        match name:
            case "nvmlInit" | "nvmlShutdown":
                return None
            case "nvmlSystemGetDriverVersion":
                return b"570.86.15"
            case "nvmlDeviceGetCount":
                return len(self.names)
            case "nvmlDeviceGetHandleByIndex":
                return args[0]
            case "nvmlDeviceGetName":
                if self.names[args[0]] is None:
                    raise self.NVMLError("lost")
                return self.names[args[0]]
            case "nvmlDeviceGetMemoryInfo":
                return SimpleNamespace(total=80 * 2**30)
        raise AssertionError(f"not part of the library: {name}")


def test_two_gpus() -> None:
    library = FakeNvml(["NVIDIA H100", b"NVIDIA L4"])
    assert nvml.gpus(library) == (
        Gpu("NVIDIA H100", 80 * 2**30, "570.86.15"),
        Gpu("NVIDIA L4", 80 * 2**30, "570.86.15"),
    )
    assert library.calls[-1] == "nvmlShutdown"


def test_no_driver() -> None:
    library = FakeNvml(["NVIDIA H100"], {"nvmlInit"})
    assert nvml.gpus(library) == ()
    assert library.calls == ["nvmlInit"]


def test_no_gpu() -> None:
    assert nvml.gpus(FakeNvml([])) == ()


def test_a_refused_fact_is_none() -> None:
    refused = {"nvmlDeviceGetMemoryInfo", "nvmlSystemGetDriverVersion"}
    assert nvml.gpus(FakeNvml(["NVIDIA GB10"], refused)) == (Gpu("NVIDIA GB10", None, None),)


def test_refusing_to_count_or_to_end_is_no_error() -> None:
    assert nvml.gpus(FakeNvml(["NVIDIA H100"], {"nvmlDeviceGetCount"})) == ()
    assert len(nvml.gpus(FakeNvml(["NVIDIA H100"], {"nvmlShutdown"}))) == 1


def test_a_gpu_that_fell_off_the_bus_hides_no_other() -> None:
    assert [gpu.name for gpu in nvml.gpus(FakeNvml([None, "NVIDIA L4"]))] == ["NVIDIA L4"]


def test_the_real_library_here() -> None:
    assert isinstance(nvml.gpus(), tuple)


@pytest.mark.gpu
def test_the_real_library_on_a_gpu() -> None:
    import torch

    names = [gpu.name for gpu in nvml.gpus()]
    assert torch.cuda.get_device_name(0) in names
    assert all(gpu.memory_bytes and gpu.memory_bytes > 2**30 for gpu in nvml.gpus())
