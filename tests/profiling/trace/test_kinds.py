"""Names of real kernels."""

from __future__ import annotations

import pytest

from flatout.nouns.anatomy import Kind
from flatout.profiling.trace import kinds

KERNELS = {
    # cuBLAS, cuDNN and CUTLASS with tensor cores
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn": Kind.TENSOR_CORES,
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn": Kind.TENSOR_CORES,
    "turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_tn": Kind.TENSOR_CORES,
    "cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>": Kind.TENSOR_CORES,
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc": Kind.TENSOR_CORES,
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64": Kind.TENSOR_CORES,
    "nvjet_hsh_192x192_64x4_2x1_v_bz_coopB_TNT": Kind.TENSOR_CORES,
    "cutlass::device_kernel<GemmUniversal<MainloopSm90TmaGmmaWarpSpecialized>": Kind.TENSOR_CORES,
    "cutlass3x_sm100_tensorop_h128x256x16gemm_f16_f16_f32": Kind.TENSOR_CORES,
    "cutlass_80_tensorop_d884gemm_64x64_16x3_nt_align1": Kind.TENSOR_CORES,
    "triton_tem_fused_addmm_relu_3": Kind.TENSOR_CORES,
    "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0": Kind.TENSOR_CORES,
    "igemm_fwd_gtcx_nhwc_fp16_bx0_ex0_bt256x128x32": Kind.TENSOR_CORES,
    # without
    "volta_sgemm_64x64_nt": Kind.MATMUL,
    "ampere_sgemm_128x64_nn": Kind.MATMUL,
    "cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>": Kind.MATMUL,
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma": Kind.MATMUL,
    "cudnn_infer_volta_scudnn_128x64_stridedB_interior_nn_v1": Kind.MATMUL,
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(...)": Kind.MATMUL,
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)": Kind.MATMUL,
    "void splitKreduce_kernel<float, float, float, float, true, false>": Kind.MATMUL,
    "type internal::gemvx::kernel<int, int, float, float>": Kind.MATMUL,
    "Cijk_Ailk_Bljk_SB_MT64x64x8_SE_K1": Kind.MATMUL,
    # attention
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>": Kind.ATTENTION,
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80": Kind.ATTENTION,
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128": Kind.ATTENTION,
    "triton_tem_fused_flex_attention_0": Kind.ATTENTION,
    # normalisation
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128>": Kind.NORMALISATION,
    "void at::native::vectorized_layer_norm_kernel<float, float>(int)": Kind.NORMALISATION,
    "void at::native::GammaBetaBackwardCUDAKernel<float, float>(long)": Kind.NORMALISATION,
    "triton_per_fused_native_layer_norm_2": Kind.NORMALISATION,
    "MIOpenBatchNormFwdTrainSpatial": Kind.NORMALISATION,
    # elementwise
    "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>": Kind.ELEMENTWISE,
    "void at::native::elementwise_kernel<128, 2, BinaryFunctor<float>>": Kind.ELEMENTWISE,
    "triton_poi_fused_gelu_5": Kind.ELEMENTWISE,
    "void at::native::fused_dropout_kernel_vec<float, float, 1, 4>": Kind.ELEMENTWISE,
    # reduction
    "void at::native::reduce_kernel<512, 1, ReduceOp<float, MeanOps>>": Kind.REDUCTION,
    "void softmax_warp_forward<float, float, float, 10, true, false>": Kind.REDUCTION,
    "void cub::DeviceRadixSortOnesweepKernel<cub::Policy<long, int>>": Kind.REDUCTION,
    "void at::native::indexSelectLargeIndex<float, long, unsigned int>": Kind.REDUCTION,
    "triton_red_fused__log_softmax_nll_loss_forward_1": Kind.REDUCTION,
    # optimizer
    "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>>": Kind.OPTIMIZER,
    # conversions
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false>": Kind.CONVERSION,
    "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>": Kind.CONVERSION,
    "void at::native::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>": Kind.CONVERSION,
    "Memcpy DtoD (Device -> Device)": Kind.CONVERSION,
    "Memset (Device)": Kind.CONVERSION,
    # copies and communication
    "Memcpy HtoD (Pinned -> Device)": Kind.COPY,
    "Memcpy DtoH (Device -> Pageable)": Kind.COPY,
    "Memcpy PtoP (Device -> Device)": Kind.COMMUNICATION,
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)": Kind.COMMUNICATION,
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)": Kind.COMMUNICATION,
    "something_nobody_has_seen": Kind.OTHER,
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kind(name):
    assert kinds.of_kernel(name) is KERNELS[name]


def test_tensor_cores():
    assert kinds.tensor_cores("ampere_bf16_s16816gemm_bf16_128x128") is True
    assert kinds.tensor_cores("volta_sgemm_64x64_nt") is False
    assert kinds.tensor_cores("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16") is True
    assert kinds.tensor_cores("void softmax_warp_forward<float>") is None


@pytest.mark.parametrize(
    ("name", "direction", "pinned"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", False),
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", True),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", True),
        ("Memcpy DtoD (Device -> Device)", "DtoD", None),
        ("Memcpy PtoP (Device -> Device)", "PtoP", None),
        ("Memcpy HtoD (Host -> Device)", "HtoD", None),
        ("Memcpy HtoA (Host -> Array)", "HtoD", None),
        ("CopyDeviceToHost", "DtoD", None),
        ("Memcpy (Host -> Device)", "HtoD", None),
    ],
)
def test_copies(name, direction, pinned):
    assert (kinds.direction(name), kinds.pinned(name)) == (direction, pinned)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("nccl:all_to_all", "all_to_all"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t", "broadcast"),
        ("ncclKernel_SendRecv_RING_SIMPLE", "send_recv"),
        ("gloo:barrier", "other"),
    ],
)
def test_collectives(name, word):
    assert kinds.collective(name) == word


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_128x64_nn", True),
        ("volta_scudnn_128x128_relu_interior_nn_v1", True),
        ("maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148n_nt", True),
        ("ampere_sgemm_32x128_tn", True),
        ("ampere_tf32_s1688gemm_128x128_ldg8_nn", False),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", False),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4>", False),
        ("volta_dgemm_128x64_nn", False),
    ],
)
def test_names_that_say_float32(name, expected):
    assert kinds.float32(name) is expected
