"""Texts from public threads that were explained wrongly, or not at all, with what they mean."""

from __future__ import annotations

import pytest

from flatout.explaining.explaining import explain_text

ATTACH = (
    "host1:100:200 [3] misc/shmutils.cc:132 NCCL WARN Error while attaching to shared memory "
    "segment /dev/shm/nccl-abcdef (size 9637888), error: No such file or directory (2)"
)
FULL = (
    "host1:100:200 [3] misc/shmutils.cc:132 NCCL WARN Error while creating shared memory "
    "segment /dev/shm/nccl-abcdef (size 9637888), error: No space left on device (28)"
)
PEER = "NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'"
NO_SYNC = """
  File "/v/accelerate/accelerator.py", line 1092, in accumulate
  File "/v/deepspeed/runtime/engine.py", line 1995, in no_sync
AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO \
stage 2
"""
EMPTY = """
    return torch.embedding(weight, input, padding_idx, scale_grad_by_freq, sparse)
RuntimeError: 'weight' must be 2-D
Parameter containing:
tensor([], device='cuda:1', dtype=torch.bfloat16)
"""
GB10 = "UserWarning: Found GPU0 NVIDIA GB10 which is of {} 12.1."
LACKS = "Your installed torch==2.13.0+cu130 does not include kernels for this GPU."
RANGE = "Minimum and Maximum cuda capability supported by this version of PyTorch is (8.0) - (12.0)"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (ATTACH, "nccl-shm-attach"),
        (ATTACH.replace("abcdef (size 9637888)", " (size 0)"), "nccl-shm-attach"),
        (FULL, "nccl-shm"),
        (f"host1:100:200 [0] transport/shm.cc:590 {PEER}", "nccl-shm-peer-access"),
        (f"host1:100:200 [0] transport/p2p.cc:275 {PEER}", "nccl-peer-access"),
        (NO_SYNC, "deepspeed-no-sync"),
        (EMPTY, "sharded-weight-shape"),
        (f"{GB10.format('compute capability (CC)')}\n{LACKS}", "torch-gb10-warning"),
        (f"{GB10.format('cuda capability')}\n{RANGE}", "torch-gb10-warning"),
        (LACKS, "torch-lacks-gpu-architecture"),
    ],
)
def test_cause(text: str, cause: str) -> None:
    assert explain_text(text).matches[0].id == cause


def test_another_weight_that_is_not_two_dimensional_is_no_sharded_one() -> None:
    text = "RuntimeError: 'weight' must be 2-D"
    assert explain_text(text).matches == ()
