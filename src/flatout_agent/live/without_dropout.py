"""Make a repeated call without dropout, so that only its arithmetic differs.

With the same seed, dropout may drop other elements under a boost: on a GPU the kernels for float32
and bfloat16 advance the generator by different amounts. That difference would hide the boost's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from flatout_agent.attach.chain import is_compiled

RATES = {
    "dropout": ("p", 1),
    "dropout_": ("p", 1),
    "dropout1d": ("p", 1),
    "dropout2d": ("p", 1),
    "dropout3d": ("p", 1),
    "alpha_dropout": ("p", 1),
    "alpha_dropout_": ("p", 1),
    "feature_dropout": ("p", 1),
    "feature_dropout_": ("p", 1),
    "feature_alpha_dropout": ("p", 1),
    "feature_alpha_dropout_": ("p", 1),
    "native_dropout": ("p", 1),
    "scaled_dot_product_attention": ("dropout_p", 4),
    "multi_head_attention_forward": ("dropout_p", 10),
}
"""Function -> name and position of its dropout rate."""
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Their rate is the one float among their arguments."""


class WithoutDropout(TorchFunctionMode):
    """Makes every dropout of torch keep everything."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False
        """There was a dropout that would have dropped something."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in RATES:
            rate, position = RATES[name]
            if len(args) > position:
                self.met = self.met or args[position] != 0.0
                args = (*args[:position], 0.0, *args[position + 1 :])
            else:
                usual = 0.0 if rate == "dropout_p" else 0.5
                self.met = self.met or kwargs.get(rate, usual) != 0.0
                kwargs[rate] = 0.0
        elif name in RECURRENT:
            self.met = self.met or any(type(value) is float and value != 0.0 for value in args)
            args = tuple(0.0 if type(value) is float else value for value in args)
        return func(*args, **kwargs)


def can_run_without_dropout(model: torch.nn.Module) -> bool:
    """Whether the mode reaches all of the model.

    Compiled code would be compiled again under it, so a comparison would cost a compilation.
    """
    return not any(
        is_compiled(module) or isinstance(module, torch.jit.ScriptModule)
        for module in model.modules()
    )
