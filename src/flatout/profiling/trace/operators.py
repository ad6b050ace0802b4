"""Names of operators and calls on the host -> Kind, and what they mean for the device."""

from __future__ import annotations

import re
from functools import lru_cache

from flatout.nouns.anatomy import Kind

STEP = re.compile(r"ProfilerStep\s*#\s*\d+")
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")
ZERO_GRAD = re.compile(r"Optimizer\.zero_grad#")
LOADER = re.compile(r"enumerate\(DataLoader\)#|DataLoader\w*\.__next__")
BACKWARD = "autograd::engine::evaluate_function: "
GRAPH_LAUNCH = re.compile(r"(cuda|cu|hip)GraphLaunch(_\w+)?")
RECORDER = re.compile(
    r"Activity Buffer Request|Buffer Flush|Instrumentation|Resource|UVM Activity Init"
)
"""Overhead that CUDA's recorder reports about itself."""
LOADING = re.compile(r"Driver Compiler|(Runtime Triggered Module|Lazy Function) Loading")
"""Loading of kernels by the driver at their first launch: overhead of the host."""
LAUNCHES = re.compile(r"Launch|Memcpy\w*Async|Memset\w*Async")
KERNEL_LAUNCH = re.compile(r"(cuda|cu|hip)\w*LaunchKernel\w*")
SYNCS = frozenset(
    {
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cudaFree",
        "cudaFreeHost",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        "cuEventSynchronize",
        "hipDeviceSynchronize",
        "hipStreamSynchronize",
        "hipEventSynchronize",
        "hipMemcpy",
        "hipMemcpyWithStream",
        "hipFree",
        "hipHostFree",
        "urQueueFinish",
        "zeCommandQueueSynchronize",
        "zeEventHostSynchronize",
    }
)
"""Runtime calls in which the host waits until the device is done."""
SYNC_OPERATORS = frozenset(
    {
        "aten::item",
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::is_nonzero",
        "aten::equal",
        "aten::masked_select",
        "aten::unique",
        "aten::_unique2",
    }
)
"""Operators that need a result from the device on the host."""
RANKS = re.compile(
    r"^(c10d::(barrier|monitored_barrier|recv)|gloo:|mpi:|ucc:|nccl:(barrier|recv))"
    r"|work::wait|::wait_tensor|Request wait|barrier",
    re.IGNORECASE,
)
COLLECTIVE = re.compile(
    r"^(c10d::|nccl:|gloo:|mpi:|_c10d_functional::|record_param_comms|xccl:|hccl:)"
)


def _rule(*words: str) -> re.Pattern[str]:
    return re.compile(r"^(?:[\w.]+::)?_?(?:" + "|".join(words) + ")")


# Wrappers that only dispatch: `aten::linear`, `aten::to`. Their own time is dispatch.
PASSING = re.compile(
    r"^aten::(linear|matmul|conv[123]d|_?convolution|to|reshape|contiguous|flatten|batch_norm|"
    r"layer_norm|group_norm|_batch_norm_impl_index|embedding_bag|dropout|softmax|log_softmax|"
    r"cross_entropy_loss|scaled_dot_product_attention|item|einsum|tensordot)$"
)
RULES = (
    (re.compile(r"^(c10d::|nccl:|gloo:|mpi:|ucc:|_c10d_functional)"), Kind.COMMUNICATION),
    (
        re.compile(r"Optimizer\.(step|zero_grad)#|aten::_fused_(adam|adamw|sgd|adagrad)"),
        Kind.OPTIMIZER,
    ),
    (
        _rule(
            r"(?:scaled_dot_product|flash_attention|efficient_attention|cudnn_attention)",
            r"transform_bias_rescale_qkv|flex_attention|scaled_mm_attn",
        ),
        Kind.ATTENTION,
    ),
    (
        _rule(
            r"(?:mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|vdot|ger|addr|linear|matmul|einsum)\b",
            r"(?:mkldnn_|cudnn_|slow_|thnn_|miopen_|mps_)?conv|convolution|mkldnn_linear|addmm_act",
            r"int_mm|scaled_mm|weight_int|tensordot|bilinear|trilinear|linalg_(?!vector_norm|norm)|chain_matmul|grouped_mm",
            r"fused_linear|linear_pointwise|convolution_pointwise|onednn|quantized::linear|fft",
        ),
        Kind.MATMUL,
    ),
    (
        _rule(
            r"(?:native_|cudnn_|miopen_|fused_|mkldnn_)?(?:batch|layer|group|instance|rms)_norm",
            r"batch_norm_|fused_rms|fused_layer|renorm",
        ),
        Kind.NORMALISATION,
    ),
    (
        _rule(
            r"copy_\b|to_copy|to\b|contiguous|clone|cat\b|stack|transpose_copy|to_mkldnn|to_dense",
            r"mkldnn_reorder|reorder|permute_copy|type_as|pin_memory|copy_from|repeat\b|roll|flip",
            r"constant_pad|pad\b|reflection_pad|replication_pad|tril|triu|copy_bucket|col2im|im2col",
            r"flatten_dense|unflatten_dense|split_with_sizes_copy|chunk_cat|resize_",
        ),
        Kind.CONVERSION,
    ),
    (
        _rule(
            r"sum|mean|softmax|log_softmax|nll_loss|cross_entropy|argm(?:ax|in)|max\b|min\b|amax",
            r"amin|aminmax|topk|sort|cumsum|cumprod|embedding|index|gather|scatter|nonzero|unique",
            r"bincount|hist|masked_select|norm\b|var|std|any|all\b|logsumexp|max_pool|avg_pool",
            r"adaptive_|mse_loss|l1_loss|smooth_l1|kl_div|binary_cross|ctc|local_scalar_dense|item",
            r"upsample|grid_sampler|searchsorted|bucketize|prod\b|median|max_unpool|lstm|gru|rnn",
            r"cdist|sparse|mkldnn_rnn|quantile|multinomial|select_backward|slice_backward|norm_except",
            r"fractional|value_selecting|equal\b|linalg_(?:vector_)?norm|segment|log_softmax_backward",
        ),
        Kind.REDUCTION,
    ),
    (re.compile(r"^aten::_foreach_norm"), Kind.REDUCTION),
    (
        _rule(
            r"foreach|amp_|add|mul|div|sub|rsub|neg|exp|log|sqrt|rsqrt|pow|square|abs|sign|clamp",
            r"relu|gelu|silu|sigmoid|tanh|leaky|elu|hardswish|hardtanh|hardsigmoid|mish|softplus",
            r"threshold|dropout|native_dropout|bernoulli|where|masked_fill|fill|zero_|ones|zeros",
            r"normal_|uniform_|rand|eq|ne\b|lt|gt|le\b|ge\b|logical|bitwise|lerp|addc|reciprocal",
            r"sin|cos|erf|floor|ceil|round|trunc|fmod|remainder|maximum|minimum|glu|prelu|atan|nan",
            r"isnan|isinf|isfinite|arange|linspace|full|scalar_tensor|eye|one_hot|random|geometric",
            r"hypot|cumulative|complex|real|imag|view_as|polar|conj|lift_fresh|mul_out|copysign|angle",
        ),
        Kind.ELEMENTWISE,
    ),
)
VIEWS = re.compile(
    r"^(?:aten::)?(?:view|_unsafe_view|reshape|_reshape_alias|as_strided|transpose|t|permute|expand|"
    r"expand_as|squeeze|unsqueeze|select|slice|narrow|split|split_with_sizes|chunk|unbind|unfold|"
    r"detach_?|alias|empty\w*|new_\w+|result_type|resolve_\w+|is_\w+|_has_\w+|size|stride|numel|"
    r"record_stream|set_|set_data|requires_grad_|movedim|swapaxes|diagonal|flatten|unflatten|"
    r"broadcast_\w+|lift|_nested\w*|output_nr|_version|retain_grad|contiguous|numpy_T|mT)$"
)


@lru_cache(maxsize=100_000)
def of_operator(name: str) -> Kind:
    """What this operator itself computes; PYTHON if it only dispatches or makes a view."""
    if PASSING.match(name) or VIEWS.match(name):
        return Kind.PYTHON
    kind_found = next((kind for rule, kind in RULES if rule.match(name)), None)
    if kind_found is None:
        return Kind.OTHER if name.startswith("aten::") else Kind.PYTHON
    return kind_found
