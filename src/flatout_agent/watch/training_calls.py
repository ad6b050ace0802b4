"""Which calls of a model belong to training."""

from __future__ import annotations

from typing import Any

import torch

from flatout_agent.watch.tensors import tensors_in


def is_frozen(model: torch.nn.Module) -> bool:
    """Whether none of its weights gets a gradient. A call of such a model without gradients (the
    features of a target) begins no evaluation.
    """
    return not any(parameter.requires_grad for parameter in model.parameters())


def is_of_training(model: torch.nn.Module, args: Any, kwargs: Any, known: bool = True) -> bool:
    """Whether gradients will come back through this call.

    Those of a trained model do if it is in training mode, whatever its inputs. A frozen model, such
    as the network behind a perceptual loss, passes gradients on to its inputs in any mode.

    known: some call of this model was one of training.
    """
    if not torch.is_grad_enabled():
        return False
    if known and model.training:
        return True
    if not is_frozen(model):
        return model.training
    if next(iter(model.parameters()), None) is None:
        return False  # a loss, or a transformation of samples
    return any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
