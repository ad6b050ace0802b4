"""What `nvidia-smi --query-gpu` prints of two nodes, and its errors."""

from __future__ import annotations

RTX_4090 = (
    "NVIDIA GeForce RTX 4090, GPU-8c5e2d1a-0000-1111-2222-333344445555, 00000000:01:00.0, 24564, "
    "570.124.06\n"
)
A100S = """\
NVIDIA A100-SXM4-40GB, GPU-00000000-1111-2222-3333-444444444444, 00000000:07:00.0, 40960, 525.147.05
NVIDIA A100-SXM4-40GB, GPU-00000001-1111-2222-3333-444444444444, 00000000:0F:00.0, 40960, 525.147.05
"""

CANNOT_TALK = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running.\n\n"
)
MISMATCH = (
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.107\n"
)
LOST = (
    "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error\n"
    "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error\n"
)
