"""Which variables are told, and that no secret is among them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.probing import variables

TOLD = [
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_LOGS",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHDYNAMO_DISABLE",
    "TRITON_CACHE_DIR",
    "NCCL_DEBUG",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_AFFINITY",
    "OPENBLAS_NUM_THREADS",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_CPP_MIN_LOG_LEVEL",
    "XLA_FLAGS",
    "JAX_PLATFORMS",
    "HIP_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "ROCR_VISIBLE_DEVICES",
    "AMD_LOG_LEVEL",
    "ZE_AFFINITY_MASK",
    "SYCL_DEVICE_FILTER",
    "NVIDIA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONNOUSERSITE",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "SLURM_JOB_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "CC",
    "CXX",
    "CUBLAS_WORKSPACE_CONFIG",
]
KEPT_BACK = [
    "DISPLAY",
    "HOME",
    "USER",
    "PATH",
    "AWS_ACCESS_KEY_ID",
    "HF_TOKEN",
    "NVIDIA_API_KEY",
    "CUDA_SECRET",
    "TF_VAR_x",
    "TF_CLI_CONFIG_FILE",
    "TF_TOKEN_app",
    "NCCL_PASSWORD",
    "PYTORCH_AUTH_HEADER",
    "torch_token",
    "TORCH_token",
]


@pytest.mark.parametrize("name", TOLD)
def test_what_matters_is_told(name: str) -> None:
    assert variables.environment({name: "1"}) == {name: "1"}
    assert variables.environment({name: ""}) == {name: ""}


@pytest.mark.parametrize("name", KEPT_BACK)
def test_the_rest_is_kept_back(name: str) -> None:
    assert variables.environment({name: "1"}) == {}


def test_credentials_in_an_address() -> None:
    told = variables.environment({"HF_HOME": "x", "MASTER_ADDR": "tcp://me:hidden@host:1"})
    assert told["MASTER_ADDR"] == "tcp://***@host:1"


@given(st.dictionaries(st.text(), st.text()))
def test_nothing_is_invented(environ: dict[str, str]) -> None:
    assert variables.environment(environ).keys() <= environ.keys()
