"""The environment variables that affect training; never one that may hold a secret."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

MATTERS = re.compile(
    r"(CUDA|CUDNN|CUBLAS|NVIDIA|NCCL|PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO|TORCHELASTIC|TRITON"
    r"|OMP|GOMP|MKL|KMP|XLA|JAX|HIP|HSA|ROCR|ROCM|MIOPEN|AMD|GPU|ZE|SYCL|ONEAPI|IPEX|GLOO|UCX"
    r"|ACCELERATE)_.+"
    r"|TF_(CPP|FORCE|GPU|ENABLE|DISABLE|XLA|USE|CUDA|CUDNN|NUM|AUTO|LAYOUT)_.+"
    r"|TF_(CONFIG|DETERMINISTIC_OPS|CUDNN_DETERMINISTIC)"  # the others are Terraform's
    r"|TORCH.+|(OPENBLAS|NUMEXPR|VECLIB)_(NUM|MAXIMUM)_THREADS|LD_LIBRARY_PATH|LD_PRELOAD"
    r"|PYTHONPATH|PYTHONHOME|PYTHONNOUSERSITE|PYTHONOPTIMIZE|PYTHONSAFEPATH|VIRTUAL_ENV|CC|CXX"
    r"|CONDA_PREFIX|CONDA_DEFAULT_ENV|PYENV_VERSION|TMPDIR|HF_HOME|HF_HUB_OFFLINE|KERAS_BACKEND"
    r"|SLURM_(JOB_ID|JOB_GPUS|NTASKS|PROCID|LOCALID|NNODES|CPUS_PER_TASK|GPUS_ON_NODE"
    r"|MEM_PER_NODE)|PBS_JOBID|LSB_JOBID|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK"
    r"|LOCAL_WORLD_SIZE"
)
PRESENCE = ("KUBERNETES_SERVICE_HOST",)
"""Variables without their values, which identify somebody's network."""
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH")
CREDENTIALS = re.compile(r"(://)[^/@\s]+@")
"""The user and password in an address."""


def environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The relevant variables that are set, by name."""
    environ = os.environ if environ is None else environ
    variables = {
        name: CREDENTIALS.sub(r"\1***@", value)
        for name, value in environ.items()
        if MATTERS.fullmatch(name) and not SECRET.search(name.upper())
    }
    variables.update({name: "set" for name in PRESENCE if name in environ})
    return dict(sorted(variables.items()))
