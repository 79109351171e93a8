"""Training that sees the weights as an export will store them, so that rounding costs little acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from paceline_export.quantize import Scheme, quantize
from paceline_export.recipes import Schemes


def as_stored(tensors: Mapping[str, Tensor], schemes: Schemes) -> dict[str, Tensor]:
    """The values that a checkpoint and then a bundle of a recipe hold; gradients pass as if nothing was rounded.

    Args:
        tensors: what is trained, float32; integers are returned as they are.
        schemes: of the recipe. What has none is rounded to bfloat16 only, as the checkpoint is.
    """
    return {
        name: _Stored.apply(tensor, schemes.get(name)) if tensor.is_floating_point() else tensor  # type: ignore[no-untyped-call]
        for name, tensor in tensors.items()
    }


class _Stored(torch.autograd.Function):
    """The straight-through estimator: Y. Bengio and others (2013), arXiv 1308.3432."""

    @staticmethod
    def forward(_ctx: Any, weight: Tensor, scheme: Scheme | None) -> Tensor:
        values = weight.detach().to(torch.bfloat16).float()
        if scheme is None:
            return values
        return torch.from_numpy(quantize(values.cpu().numpy(), scheme).dequantized()).to(weight.device)

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None
