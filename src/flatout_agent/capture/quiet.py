"""Hides a capture from the program: output, log lines, warnings, random numbers, modes."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Compute on the CPU in exact float32, without gradients; everything is restored for the
    program.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_same_random_numbers())
        stack.enter_context(_no_output())
        stack.enter_context(_exact_products())
        stack.enter_context(_unchecked_distributions())
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.no_grad())
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


@contextlib.contextmanager
def _no_output() -> Iterator[None]:
    disabled = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


@contextlib.contextmanager
def _exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Disable their argument checks, which depend on values and cannot be exported."""
    from torch.distributions import Distribution

    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    own = random.getstate()
    numpy: Any = sys.modules.get("numpy")
    numpys = numpy.random.get_state() if numpy is not None else None
    devices_of: Any = torch.cuda  # hardly typed
    cuda = torch.cuda.is_available() and devices_of.is_initialized()
    devices = list(range(torch.cuda.device_count())) if cuda else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(own)
            if numpys is not None:
                numpy.random.set_state(numpys)
