"""Twelve models as people serve them, with random weights, written from their papers.

Each entry of `MODELS` makes a model and calls of it: batches of 32, 32 and 5 samples. Weights are
random, but statistics of batch norms are those of the inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCHES = (32, 32, 5)


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    """Convolution and batch norm."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """A block of ResNet: two 3x3 convolutions, or 1x1, 3x3, 1x1."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            parts = [conv(inputs, width, 1), nn.ReLU(), conv(width, width, 3, stride), nn.ReLU()]
            parts.append(conv(width, outputs, 1))
        else:
            parts = [conv(inputs, width, 3, stride), nn.ReLU(), conv(width, width, 3)]
        self.body = nn.Sequential(*parts)
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def resnet(blocks: tuple[int, ...], bottleneck: bool) -> nn.Module:
    """He et al. 2015."""
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(count):
            layers.append(Residual(inputs, width, 2 if stage and not block else 1, bottleneck))
            inputs = 4 * width if bottleneck else width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    return nn.Sequential(*layers, *head)


class Inverted(nn.Module):
    """A block of MobileNetV3 with squeeze and excitation."""

    def __init__(self, inputs: int, middle: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.grow = nn.Sequential(conv(inputs, middle, 1), nn.Hardswish())
        deep = conv(middle, middle, kernel, stride, groups=middle)
        self.depthwise = nn.Sequential(deep, nn.Hardswish())
        squeeze = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(middle, middle // 4, 1), nn.ReLU()]
        gate = [nn.Conv2d(middle // 4, middle, 1), nn.Hardsigmoid()]
        self.gate = nn.Sequential(*squeeze, *gate)
        self.shrink = conv(middle, outputs, 1)
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        found = self.depthwise(self.grow(x))
        found = self.shrink(found * self.gate(found))
        return x + found if self.same else found


def mobilenet_v3() -> nn.Module:
    """Howard et al. 2019, small."""
    rows = [(16, 16, 16, 3, 2), (16, 72, 24, 3, 2), (24, 88, 24, 3, 1), (24, 96, 40, 5, 2)]
    rows += [(40, 240, 40, 5, 1), (40, 240, 40, 5, 1), (40, 120, 48, 5, 1), (48, 144, 48, 5, 1)]
    rows += [(48, 288, 96, 5, 2), (96, 576, 96, 5, 1), (96, 576, 96, 5, 1)]
    stem, head = [conv(3, 16, 3, 2), nn.Hardswish()], [conv(96, 576, 1), nn.Hardswish()]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(576, 1024), nn.Hardswish()]
    blocks = [Inverted(*row) for row in rows]
    return nn.Sequential(*stem, *blocks, *head, *end, nn.Linear(1024, 1000))


class Attending(nn.Module):
    """A transformer block, norms first."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


class Vit(nn.Module):
    """Dosovitskiy et al. 2020, tiny: 12 blocks of width 192."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 16, 16)
        self.place = nn.Parameter(0.02 * torch.randn(1, 196, 192))
        self.blocks = nn.Sequential(*(Attending(192, 3) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 1000)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class Unet(nn.Module):
    """Ronneberger et al. 2015, with batch norm, widths 32 to 256."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 32, 64, 128, 256]
        self.down = nn.ModuleList(self._two(a, b) for a, b in itertools.pairwise(widths))
        pairs = list(zip(widths[:1:-1], widths[-2:0:-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.after = nn.ModuleList(self._two(a, b) for a, b in pairs)
        self.head = nn.Conv2d(32, 2, 1)

    @staticmethod
    def _two(inputs: int, outputs: int) -> nn.Module:
        first = [conv(inputs, outputs, 3), nn.ReLU()]
        return nn.Sequential(*first, conv(outputs, outputs, 3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for place, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if place else x)
            seen.append(x)
        for up, after, beside in zip(self.up, self.after, seen[-2::-1], strict=True):
            x = after(torch.cat([up(x), beside], 1))
        return self.head(x)


class ConvNextBlock(nn.Module):
    """Liu et al. 2022."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        found = self.mlp(self.norm(self.deep(x).permute(0, 2, 3, 1)))
        return x + (self.scale * found).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """ConvNeXt-T."""
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), nn.GroupNorm(1, 96)]
    for stage, count in enumerate((3, 3, 9, 3)):
        width = 96 * 2**stage
        if stage:
            layers += [nn.GroupNorm(1, width // 2), nn.Conv2d(width // 2, width, 2, 2)]
        layers += [ConvNextBlock(width) for _ in range(count)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, 1000))


class Texts(nn.Module):
    """BERT (classes of the first token) and GPT (logits of the last one), 6 blocks of 384."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.token, self.place = nn.Embedding(8000, 384), nn.Embedding(128, 384)
        self.blocks = nn.Sequential(*(Attending(384, 6, causal) for _ in range(6)))
        self.norm, self.head = nn.LayerNorm(384), nn.Linear(384, 8000 if causal else 4)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.norm(self.blocks(self.token(ids) + self.place(places)))
        return self.head(hidden[:, -1 if self.causal else 0])


class Recurrent(nn.Module):
    """Two layers of LSTM and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 128, 2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Causal(nn.Module):
    """A block of a temporal convolutional network (Bai et al. 2018)."""

    def __init__(self, inputs: int, width: int, step: int) -> None:
        super().__init__()
        self.pad = 2 * step
        self.first = nn.Conv1d(inputs, width, 3, dilation=step)
        self.second = nn.Conv1d(width, width, 3, dilation=step)
        self.skip = nn.Conv1d(inputs, width, 1) if inputs != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        found = F.relu(self.first(F.pad(x, (self.pad, 0))))
        found = F.relu(self.second(F.pad(found, (self.pad, 0))))
        return F.relu(found + self.skip(x))


class Tcn(nn.Module):
    """Six blocks and a class."""

    def __init__(self) -> None:
        super().__init__()
        widths = [16, *[64] * 6]
        pairs = enumerate(itertools.pairwise(widths))
        self.blocks = nn.Sequential(*(Causal(a, b, 2**place) for place, (a, b) in pairs))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x)[:, :, -1])


def mlp() -> nn.Module:
    """Four linear layers."""
    widths = [128, 512, 512, 512]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def dcgan() -> nn.Module:
    """The generator of Radford et al. 2015: 100 numbers to 64 x 64 pixels."""
    widths = [100, 512, 256, 128, 64]
    layers: list[nn.Module] = []
    for place, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        step = (4, 1, 0) if not place else (4, 2, 1)
        up = nn.ConvTranspose2d(inputs, outputs, *step, bias=False)
        layers += [up, nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


def values(*shape: int) -> Callable[[int], Tensor]:
    """Normal random numbers."""
    return lambda batch: torch.randn(batch, *shape)


def words(batch: int) -> Tensor:
    """Random tokens."""
    return torch.randint(0, 8000, (batch, 128))


PICTURE = values(3, 224, 224)
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mlp": (mlp, values(128)),
    "tcn": (Tcn, values(16, 256)),
    "lstm": (Recurrent, values(64, 32)),
    "dcgan": (dcgan, values(100, 1, 1)),
    "resnet18": (lambda: resnet((2, 2, 2, 2), False), PICTURE),
    "mobilenet_v3": (mobilenet_v3, PICTURE),
    "vit_tiny": (Vit, PICTURE),
    "bert": (lambda: Texts(False), words),
    "gpt_prefill": (lambda: Texts(True), words),
    "unet": (Unet, values(3, 128, 128)),
    "resnet50": (lambda: resnet((3, 4, 6, 3), True), PICTURE),
    "convnext_tiny": (convnext, PICTURE),
}
"""The quickest to build first."""


def make(name: str) -> tuple[nn.Module, list[tuple[Any, ...]]]:
    """A model in evaluation mode, and calls of it."""
    torch.manual_seed(0)
    model, sample = MODELS[name][0](), MODELS[name][1]
    calls = [(sample(batch),) for batch in BATCHES]
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    for layer in norms:
        layer.momentum = None  # the average of what it sees
    if norms:
        with torch.no_grad():
            model.train()(calls[0][0])
    return model.eval(), calls
