"""A device's data sheet figure for each ceiling, in the ceiling's unit."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flatout.knowledge import gpus, pcie
from flatout.knowledge.gpus import GpuModel
from flatout.nouns.ceiling import Device

BY_DTYPE = re.compile(r"(?:matmul|attention|conv-nchw|conv-nhwc)-(fp64|fp32|tf32|fp16|bf16|fp8)")
BETWEEN = ("copy-device-to-device", "all-reduce")


def figure(ceiling_id: str, device: Device | None, devices: Sequence[Device]) -> float | None:
    """TFLOP/s (dense) or GB/s, or None for a CPU, an unknown model or if not on the sheet.

    devices: all devices; what several do together runs at the speed of their link.
    """
    model = gpus.find(device.name, device.memory_bytes) if device and device.name else None
    if model is None:
        return None
    if (match := BY_DTYPE.fullmatch(ceiling_id)) is not None:
        return _peak(model, match[1], ceiling_id.startswith("conv"))
    if ceiling_id in ("copy-device", "triad-device"):
        return model.bandwidth_gb_per_s
    if ceiling_id.startswith("copy-") and ceiling_id.endswith("-pinned"):
        return pcie_gb_per_s(model)
    alike = len({entry.name for entry in devices if entry.name}) == 1
    if ceiling_id in BETWEEN and alike and model.nvlink_gb_per_s is not None:
        return model.nvlink_gb_per_s / 2
    return None


def pcie_gb_per_s(model: GpuModel) -> float | None:
    """GB/s of all lanes in one direction, or None if unknown or not connected by PCIe."""
    if "nvlink_c2c" in model.features:
        return None
    return pcie.gb_per_s(model.pcie_generation, model.pcie_width)


def _peak(model: GpuModel, dtype: str, convolution: bool) -> float | None:
    peaks = model.peaks_tflop_per_s
    if dtype == "fp64":
        return peaks.get("fp64_tensor", peaks.get("fp64"))
    if dtype == "fp32" and convolution:  # cuDNN uses TF32 for float32 if the GPU has it
        return peaks.get("tf32", peaks.get("fp32"))
    return peaks.get(dtype)
