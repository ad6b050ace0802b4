"""Names of kernels -> Kind: cuBLAS, cuDNN, CUTLASS, Triton (of Inductor), PyTorch's own,
flash-attention, Tensile and MIOpen on AMD, NCCL and RCCL. The first matching rule decides.
"""

from __future__ import annotations

import re
from functools import lru_cache

from flatout.nouns.anatomy import Kind


def _rule(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join(parts), re.IGNORECASE)


TENSOR_CORES = _rule(
    r"tensor_?op|[hsid](884|1688|16816|16832)|tensor\d+x\d+x\d+|cutlass_\d+_wmma|triton_tem_",
    r"wgmma|gmma|hmma|imma|dmma|qmma|utcmma|tcgen05|warpgroupsize|nvjet",
    r"sm(70|72|75|80|86|87|89|90|100|103|120)_xmma|cutlass3x_sm\d+|cutlass\w*_sm(90|100|103|120)",
    r"(ampere|turing|volta|hopper)_(fp16|bf16|tf32|fp8)",
    r"_MI\d+x\d+x\d+|mfma|_wmma_|igemm_(fwd|bwd|wrw)_gtcx",
)
"""The name contains the instruction or the unit."""
FLOAT32 = re.compile(r"(?:^|_)s(?:gemm|cudnn)_", re.IGNORECASE)
"""volta_sgemm_128x64_nn, volta_scudnn_128x128_relu_interior_nn_v1."""
RULES = (
    (
        _rule(
            r"nccl|rccl|msccl|(?<!block)(?<!warp)all_?reduce|all_?gather|reduce_?scatter",
            r"all_?to_?all|symm_mem|multimem_|nvshmem",
        ),
        Kind.COMMUNICATION,
    ),
    (_rule(r"triton_\w*flex_?att"), Kind.ATTENTION),
    (_rule(r"triton_tem_"), Kind.TENSOR_CORES),
    (_rule(r"triton_\w*norm"), Kind.NORMALISATION),
    (_rule(r"triton_(red|per)_"), Kind.REDUCTION),
    (_rule(r"triton_\w+_fused_+(to_copy|clone|copy|permute|transpose|cat)_\d*"), Kind.CONVERSION),
    (_rule(r"triton_poi_"), Kind.ELEMENTWISE),
    (
        _rule(
            r"flash|fmha|mha_(fwd|bwd|fprop|dgrad)|mem_?eff|efficient_attention|sdpa",
            r"attn_(fwd|bwd)|attention(?!al)|fused_?attn|_attn_",
        ),
        Kind.ATTENTION,
    ),
    (
        _rule(
            r"multi_tensor_apply|fused_?adam|fused_?sgd|adamw?_|_adam\b|lamb_kernel|foreach",
            r"split_embedding_.*(adagrad|sgd|adam|lamb)|amp_update_scale|adagrad",
        ),
        Kind.OPTIMIZER,
    ),
    (
        _rule(
            r"nchwTo|nhwcTo|tensorTransform|batched_transpose|transpose|convertTensor|im2col|col2im",
            r"vol2col|col2vol|direct_copy|CatArrayBatchedCopy",
        ),
        Kind.CONVERSION,
    ),
    (_rule(r"embedding"), Kind.REDUCTION),
    (_rule(r"ffma|dfma|simt|[sdc]gemm_\d|scudnn"), Kind.MATMUL),
    (TENSOR_CORES, Kind.TENSOR_CORES),
    (
        _rule(
            r"batch_?norm|(?<![a-z])bn_|layer_?norm|group_?norm|instance_?norm|rms_?norm|welford",
            r"RowwiseMoments|GammaBeta|ComputeInternalGradients|ComputeFusedParams|cuApplyLayer",
            r"cuComputeGradInput|(?<![a-z])ln_(fwd|bwd)|norm_(fwd|bwd)|batch_norm_",
        ),
        Kind.NORMALISATION,
    ),
    (
        _rule(
            r"gemm|gemv|(?<![a-z])conv|convol|implicit_|winograd|cijk_|fprop|dgrad|wgrad",
            r"dot_kernel|split_?k|matmul|mm_kernel|flip_filter|computeOffsets|OffsetsKernel|cublas",
            r"fft2d_|fft1d_|cudnn::cnn",
        ),
        Kind.MATMUL,
    ),
    (_rule(r"elementwise"), Kind.ELEMENTWISE),
    (
        _rule(
            r"reduce|reduction|softmax|nll_loss|cross_entropy|cunn_|argm(ax|in)|top_?k|sort|scan",
            r"cumsum|cumprod|embedding|index|gather|scatter|put_kernel|nonzero|unique|histogram",
            r"bincount|cub::|thrust|rocprim|hipcub|norm_kernel|mean|pool|_loss|sparse|segment",
            r"upsample|interpolate|grid_sampler|bounds_check|lstm|gru_|rnn|cdist",
        ),
        Kind.REDUCTION,
    ),
    (
        _rule(r"copy|permute|contiguous|clone|cast_kernel|chunk_cat|roll_cuda|repeat|dequantize"),
        Kind.CONVERSION,
    ),
    (
        _rule(
            r"pointwise|dropout|fill|distribution_|CUDAFunctor|activation|relu|gelu|silu|sigmoid",
            r"tanh|bernoulli|random|arange|tri[ul]_|where|masked|triton|OpTensor|scale\w*tensor",
            r"swiglu|rope|rotary|curand|philox|BinaryOp|UnaryOp|bias|nchw_add|add_kernel",
        ),
        Kind.ELEMENTWISE,
    ),
)


COPIES = {"DtoD": Kind.CONVERSION, "PtoP": Kind.COMMUNICATION}


@lru_cache(maxsize=100_000)
def of_kernel(name: str) -> Kind:
    """What this kernel does, by its name."""
    if name.startswith("Memset"):
        return Kind.CONVERSION
    if name.startswith("Memcpy"):
        return COPIES.get(direction(name), Kind.COPY)
    return next((kind for rule, kind in RULES if rule.search(name)), Kind.OTHER)


def tensor_cores(name: str) -> bool | None:
    """Whether this kernel multiplies on tensor cores, or None if its name does not show it."""
    kind = of_kernel(name)
    if kind is Kind.ATTENTION:
        return True if TENSOR_CORES.search(name) else None
    return {Kind.TENSOR_CORES: True, Kind.MATMUL: False}.get(kind)


def float32(name: str) -> bool:
    """Whether this kernel is cuBLAS's or cuDNN's for float32 off tensor cores, by its name."""
    return FLOAT32.search(name) is not None


def direction(name: str) -> str:
    """Direction of a copy: HtoD, DtoH, DtoD, PtoP or HtoH."""
    match = re.search(r"\b([HDPA])to([HDPA])\b", name)
    if match:
        return match.group().replace("A", "D")
    source, arrow, target = name.lower().partition("->")
    if not arrow:
        return "DtoD"
    return "to".join("D" if "device" in side else "H" for side in (source, target))


def pinned(name: str) -> bool | None:
    """Whether the host's side of a copy is page-locked, or None if its name does not show it."""
    if "Pinned" in name:
        return True
    return False if "Pageable" in name else None


COLLECTIVES = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("broadcast", "broadcast"),
    ("alltoall", "all_to_all"),
    ("sendrecv", "send_recv"),
)


def collective(name: str) -> str:
    """The collective that a kernel, an operator or an annotation performs."""
    lower = name.lower().replace("_", "")
    return next((word for part, word in COLLECTIVES if part in lower), "other")
