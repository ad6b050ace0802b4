"""Settings of this process that cost time while they are on."""

from __future__ import annotations

import os
import re
import sys
import tracemalloc
from collections.abc import Mapping

import torch

NUMBER = r"[1-9]\d*"
VARIABLES = (
    ("CUDA_LAUNCH_BLOCKING", NUMBER),
    ("HIP_LAUNCH_BLOCKING", NUMBER),
    ("AMD_SERIALIZE_KERNEL", NUMBER),
    ("AMD_SERIALIZE_COPY", NUMBER),
    ("AMD_LOG_LEVEL", NUMBER),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", NUMBER),
    ("TORCH_CUDA_SANITIZER", ".+"),
    ("PYTORCH_JIT", "0"),
    ("TORCH_COMPILE_DEBUG", "1"),
    ("TORCHDYNAMO_DISABLE", "1"),
    ("TORCH_DISTRIBUTED_DEBUG", "(?i)INFO|DETAIL"),
    ("TORCH_SHOW_CPP_STACKTRACES", "1"),
    ("TORCH_LOGS", ".+"),
    ("TORCH_CPP_LOG_LEVEL", "(?i)INFO|0"),
    ("NCCL_DEBUG", "(?i)INFO|TRACE"),
    ("NCCL_BLOCKING_WAIT", "1"),
    ("TORCH_NCCL_BLOCKING_WAIT", "1"),
    ("CUDNN_LOGLEVEL_DBG", NUMBER),
    ("CUDNN_LOGINFO_DBG", "1"),
    ("CUBLAS_LOGINFO_DBG", "1"),
    ("PYTHONMALLOC", "(?i).*debug"),
    ("PYTHONTRACEMALLOC", NUMBER),
    ("PYTHONASYNCIODEBUG", ".+"),
    ("OMP_WAIT_POLICY", "(?i)active"),
)  # fmt: skip
"""Name, and the values that cost something (regular expressions for the whole value)."""


def debug_variables(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """NAME=value of variables whose setting costs something, and Python's own modes."""
    environ = os.environ if environ is None else environ
    variables = [
        f"{name}={environ[name]}"
        for name, values in VARIABLES
        if name in environ and re.fullmatch(values, environ[name].strip())
    ]
    if sys.flags.dev_mode:
        variables.append("PYTHONDEVMODE=1")
    return tuple(variables)


def tracers() -> tuple[str, ...]:
    """Tools that inspect each line or allocation of Python while the program runs."""
    names = []
    if tracemalloc.is_tracing():
        frames = tracemalloc.get_traceback_limit()
        names.append(f"tracemalloc ({frames} frame{'s' if frames > 1 else ''})")
    function = sys.gettrace()
    if function is not None:
        names.append(f"sys.settrace ({getattr(function, '__module__', type(function).__module__)})")
    if sys.version_info >= (3, 12):
        tools = (sys.monitoring.DEBUGGER_ID, sys.monitoring.COVERAGE_ID)
        names += [
            f"sys.monitoring ({tool})" for tool in map(sys.monitoring.get_tool, tools) if tool
        ]
    return tuple(names)


def deterministic() -> bool:
    """Whether slower kernels are chosen for reproducible results."""
    return bool(torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic)
