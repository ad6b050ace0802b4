"""Names of operators, as torch records them."""

from __future__ import annotations

import pytest

from flatout.nouns.anatomy import Kind
from flatout.profiling.trace import operators

NAMES = {
    Kind.MATMUL: "aten::mm aten::addmm aten::bmm aten::mkldnn_convolution"
    " aten::convolution_backward"
    " mkldnn::_linear_pointwise aten::_scaled_mm aten::thnn_conv2d aten::_slow_conv2d_forward",
    Kind.ATTENTION: "aten::_scaled_dot_product_flash_attention_for_cpu"
    " aten::_scaled_dot_product_flash_attention_for_cpu_backward aten::_flash_attention_forward",
    Kind.NORMALISATION: "aten::native_batch_norm aten::native_layer_norm_backward"
    " aten::cudnn_batch_norm aten::native_group_norm",
    Kind.CONVERSION: "aten::copy_ aten::_to_copy aten::clone aten::cat aten::stack",
    Kind.REDUCTION: "aten::sum aten::_softmax aten::_log_softmax_backward_data"
    " aten::nll_loss_forward aten::index_select aten::embedding_dense_backward aten::nonzero"
    " aten::linalg_vector_norm aten::_local_scalar_dense aten::max_pool2d_with_indices"
    " aten::argmax",
    Kind.ELEMENTWISE: "aten::add_ aten::mul aten::relu aten::gelu_backward aten::threshold_backward"
    " aten::_foreach_add_ aten::fill_ aten::sqrt aten::native_dropout aten::where aten::gt",
    Kind.OPTIMIZER: "aten::_fused_adamw_ Optimizer.step#SGD.step Optimizer.zero_grad#SGD.zero_grad",
    Kind.COMMUNICATION: "c10d::allreduce_ gloo:all_reduce nccl:broadcast"
    " _c10d_functional::all_reduce",
    Kind.PYTHON: "aten::linear aten::view aten::transpose aten::as_strided aten::empty aten::conv2d"
    " AddmmBackward0 torch::autograd::AccumulateGrad aten::detach aten::select aten::reshape",
    Kind.OTHER: "aten::something_new",
}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for kind, names in NAMES.items() for name in names.split()]
)
def test_kind(name, kind):
    assert operators.of_operator(name) is kind


def test_names_of_the_loader():
    for name in (
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    ):
        assert operators.LOADER.search(name)
    assert not operators.LOADER.search("aten::load")
