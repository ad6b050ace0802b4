"""What the healthy profiles are made of: lines, operators, kernels, ceilings."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.nouns.anatomy import Kind
from flatout.nouns.ceiling import Ceiling
from flatout.nouns.profile import Kernel, Operator, Place

LOADER = Place("train.py", 80, "train_epoch", "for images, labels in loader:")
TO_DEVICE = Place("train.py", 81, "train_epoch", "images = images.to(device, non_blocking=True)")
FORWARD = Place("train.py", 84, "train_epoch", "loss = F.cross_entropy(model(images), labels)")
BACKWARD = Place("train.py", 85, "train_epoch", "loss.backward()")
STEP = Place("train.py", 86, "train_epoch", "optimizer.step()")
CONV = Place("resnet.py", 33, "forward", "out = F.relu(self.bn1(self.conv1(x)))")
HEAD = Place("resnet.py", 77, "forward", "return self.head(x.mean(dim=(2, 3)))")

GPU_CEILINGS = {
    "matmul-fp32": (18.9, "TFLOP/s"),
    "matmul-tf32": (131.0, "TFLOP/s"),
    "matmul-fp16": (263.0, "TFLOP/s"),
    "matmul-bf16": (259.0, "TFLOP/s"),
    "matmul-fp64": (17.6, "TFLOP/s"),
    "conv-nchw-fp32": (15.2, "TFLOP/s"),
    "conv-nchw-bf16": (118.0, "TFLOP/s"),
    "conv-nhwc-bf16": (171.0, "TFLOP/s"),
    "copy-device": (1640.0, "GB/s"),
    "triad-device": (1620.0, "GB/s"),
    "copy-host-to-device-pinned": (24.8, "GB/s"),
    "copy-host-to-device-pageable": (8.2, "GB/s"),
    "copy-device-to-host-pinned": (25.3, "GB/s"),
    "copy-device-to-host-pageable": (6.9, "GB/s"),
    "launch-latency": (6.1, "us"),
    "launch-rate": (235000.0, "launches/s"),
    "jpeg-decode-core": (240.0, "images/s"),
}
CPU_CEILINGS = {
    "matmul-cpu-fp32": (0.62, "TFLOP/s"),
    "memory-cpu": (38.0, "GB/s"),
    "jpeg-decode-core": (240.0, "images/s"),
}


def ceilings(values: Mapping[str, tuple[float, str]], device: str) -> tuple[Ceiling, ...]:
    """Measured ceilings of these values and units."""
    return tuple(Ceiling(key, key, device, value, unit) for key, (value, unit) in values.items())


def gpu_operators() -> tuple[Operator, ...]:
    batch = "256x64x56x56, 64x64x3x3"
    half = ("c10::BFloat16",)
    return (
        Operator(
            "aten::convolution_backward",
            Kind.TENSOR_CORES,
            53.0,
            1.4,
            34.6,
            (batch,),
            half,
            CONV,
            backward=True,
            flops=4.2e12,
        ),
        Operator(
            "aten::cudnn_convolution",
            Kind.TENSOR_CORES,
            53.0,
            0.9,
            17.3,
            (batch,),
            half,
            CONV,
            flops=2.1e12,
        ),
        Operator("triton_poi_fused_relu_add", Kind.ELEMENTWISE, 110.0, 1.0, 18.0, (), half, CONV),
        Operator(
            "triton_red_fused_batch_norm", Kind.NORMALISATION, 106.0, 1.0, 17.0, (), half, CONV
        ),
        Operator(
            "aten::addmm",
            Kind.TENSOR_CORES,
            1.0,
            0.03,
            0.1,
            ("1000, 256x2048, 2048x1000",),
            half,
            HEAD,
            flops=1.05e9,
        ),
        Operator(
            "aten::_log_softmax", Kind.REDUCTION, 1.0, 0.02, 0.1, ("256x1000",), ("float",), FORWARD
        ),
        Operator("Optimizer.step#SGD.step", Kind.OPTIMIZER, 1.0, 0.6, 1.5, (), ("float",), STEP),
    )


def gpu_kernels() -> tuple[Kernel, ...]:
    return (
        Kernel(
            "sm80_xmma_fprop_implicit_gemm_bf16bf16_nhwc",
            Kind.TENSOR_CORES,
            160.0,
            51.9,
            "aten::cudnn_convolution",
            CONV,
            True,
            0.25,
        ),
        Kernel(
            "ampere_bf16_s16816gemm_bf16_128x128_tn",
            Kind.TENSOR_CORES,
            1.0,
            0.1,
            "aten::addmm",
            HEAD,
            True,
            0.25,
        ),
        Kernel("triton_poi_fused_relu_add_0", Kind.ELEMENTWISE, 110.0, 18.0, "", CONV, False, 1.0),
        Kernel(
            "triton_red_fused_batch_norm_1", Kind.NORMALISATION, 106.0, 17.0, "", CONV, False, 1.0
        ),
        Kernel(
            "multi_tensor_apply_kernel<FusedSgd>",
            Kind.OPTIMIZER,
            4.0,
            1.5,
            "Optimizer.step#SGD.step",
            STEP,
            False,
            0.9,
        ),
    )


def cpu_operators() -> tuple[Operator, ...]:
    batch = "64x64x28x28, 64x64x3x3"
    return (
        Operator(
            "aten::convolution_backward",
            Kind.MATMUL,
            20.0,
            136.0,
            0.0,
            (batch,),
            ("float",),
            CONV,
            backward=True,
            flops=1.1e11,
        ),
        Operator(
            "aten::mkldnn_convolution",
            Kind.MATMUL,
            20.0,
            68.0,
            0.0,
            (batch,),
            ("float",),
            CONV,
            flops=5.6e10,
        ),
        Operator("cpp_fused_relu_add", Kind.ELEMENTWISE, 110.0, 30.0, 0.0, (), ("float",), CONV),
        Operator(
            "aten::native_batch_norm", Kind.NORMALISATION, 40.0, 24.0, 0.0, (), ("float",), CONV
        ),
        Operator("Optimizer.step#SGD.step", Kind.OPTIMIZER, 1.0, 8.0, 0.0, (), ("float",), STEP),
    )


GPU_OPERATORS_MS = sum(operator.device_ms for operator in gpu_operators())
CPU_OPERATORS_MS = sum(operator.host_ms for operator in cpu_operators())
