from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout_train.out_of_memory import is_out_of_memory, let_go

CPU = torch.device("cpu")
YES = [
    "CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 23.69 GiB total capacity; ...)",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "CUDA driver error: out of memory",
    "HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.98 GiB",
    "HIP error: out of memory",
    "XPU out of memory. Tried to allocate 64.00 GiB.",
    "MPS backend out of memory (MPS allocated: 7.64 GiB, other allocations: 68.91 GiB).",
    "Triton Error [CUDA]: out of memory",
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 1677721600 bytes. Error code 12 (Cannot allocate memory)",
    "[enforce fail at alloc_cpu.cpp:83] data. DefaultCPUAllocator: not enough memory: you tried to "
    "allocate 4294967296 bytes.",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB",
]
MAYBE = [
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
    "non-contiguous input.",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
]
NO = [
    "we ran out of memory cells in the model",
    "CUDA error: device-side assert triggered",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: too many resources requested for launch",
    "out of resource: shared memory, Required: 262144, Hardware limit: 232448",
    "mat1 and mat2 shapes cannot be multiplied (4x8 and 3x3)",
    "Expected all tensors to be on the same device",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
]


@pytest.mark.parametrize("text", YES)
def test_what_allocators_say(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert is_out_of_memory(torch.OutOfMemoryError(text))
    assert not is_out_of_memory(ValueError(text))


@pytest.mark.parametrize("text", NO)
def test_what_others_say(text: str) -> None:
    assert not is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize("text", MAYBE)
@pytest.mark.parametrize(("free", "full"), [(50, False), (1, True)])
def test_what_counts_on_a_full_device_only(
    text: str, free: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three devices, torch holds memory on the last two: asking the first would allocate."""
    asked: list[int] = []

    def mem_get_info(device: int) -> tuple[int, int]:
        asked.append(device)
        return free if device == 2 else 50, 100

    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 3,
        memory_reserved=lambda number: number * 2**20,
        mem_get_info=mem_get_info,
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    assert is_out_of_memory(RuntimeError(text)) is full
    assert asked == [1, 2]


def test_the_host_s_own_error_and_collectives() -> None:
    assert is_out_of_memory(MemoryError())
    failed = torch.distributed.DistBackendError("NCCL error: CUDA error: out of memory")
    assert not is_out_of_memory(failed)
    assert not is_out_of_memory(KeyboardInterrupt())


def test_a_real_allocation_that_fails() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**45, dtype=torch.uint8)  # no address space is that large
    assert is_out_of_memory(raised.value)


def fail(held: list[weakref.ref[Any]]) -> None:
    tensor = torch.zeros(1000)
    held.append(weakref.ref(tensor))
    raise RuntimeError("first")


def fail_again(held: list[weakref.ref[Any]]) -> None:
    other = torch.ones(1000)
    held.append(weakref.ref(other))
    try:
        fail(held)
    except RuntimeError as error:
        raise ValueError("second") from error


def test_what_the_frames_held_is_let_go() -> None:
    held: list[weakref.ref[Any]] = []
    gc.disable()
    try:
        try:
            fail_again(held)
        except ValueError as error:
            failure = error
        assert [ref() is None for ref in held] == [False, False]
        let_go(failure, CPU)
    finally:
        gc.enable()
    assert [ref() for ref in held] == [None, None]
    assert str(failure) == "second"
    assert failure.__traceback__ is failure.__cause__ is failure.__context__ is None


@pytest.mark.gpu
def test_a_full_gpu_and_its_cache() -> None:
    device = torch.device("cuda")
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(2**46, dtype=torch.uint8, device=device)
    assert is_out_of_memory(raised.value)
    torch.empty(2**28, dtype=torch.uint8, device=device)
    let_go(raised.value, device)
    assert torch.cuda.memory_reserved() - torch.cuda.memory_allocated() < 2**28
