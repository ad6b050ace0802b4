"""Attention as people write it, each in a module that takes (batch, length, WIDTH)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LENGTH = 32, 4, 24
HEAD = WIDTH // HEADS


class Base(nn.Module):
    """Projections, and heads as (batch, heads, length, width of a head)."""

    fuses = True

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(p)
        self.register_buffer("bias", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def heads(self, x: Any) -> list[Any]:
        b, t, _ = x.shape
        return [part.view(b, t, HEADS, HEAD).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]

    def joined(self, y: Any) -> Any:
        return self.out(y.transpose(1, 2).contiguous().view(y.shape[0], -1, WIDTH))


class NanoGPT(Base):
    def forward(self, x: Any) -> Any:
        t = x.size(1)
        q, k, v = self.heads(x)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.drop(att)
        return self.joined(att @ v)


def attention(query: Any, key: Any, value: Any, mask: Any = None, dropout: Any = None) -> Any:
    """As in the Annotated Transformer."""
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class Annotated(Base):
    def forward(self, x: Any) -> Any:
        mask = x[:, :, 0].unsqueeze(1) > -0.7
        if mask.dim() == 3:
            mask = mask.unsqueeze(1)
        y, self.attn = attention(*self.heads(x), mask=mask, dropout=self.drop)
        return self.joined(y)


class ViT(Base):
    """vit-pytorch: the softmax is a module."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p)
        self.attend = nn.Softmax(dim=-1)
        self.scale = HEAD**-0.5

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        attn = self.drop(self.attend(dots))
        return self.joined(torch.matmul(attn, v))


class Lucid(Base):
    """Earlier x-transformers: einsum, and a mask filled in place."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * HEAD**-0.5
        mask_value = -torch.finfo(dots.dtype).max
        i, j = dots.shape[-2:]
        mask = torch.ones((i, j), device=dots.device).triu_(j - i + 1).bool()
        dots.masked_fill_(mask, mask_value)
        attn = self.drop(dots.softmax(dim=-1))
        return self.joined(torch.einsum("b h i j, b h j d -> b h i d", attn, v))


class Heads3D(Base):
    """fairseq, BART: the heads are in the batch, and the scores are viewed to be masked."""

    def forward(self, x: Any) -> Any:
        b, t, _ = x.shape
        q, k, v = (part.contiguous().view(b * HEADS, t, HEAD) for part in self.heads(x))
        weights = torch.bmm(q * HEAD**-0.5, k.transpose(1, 2))
        mask = (x[:, None, None, :, 0] < -0.7).to(x.dtype) * torch.finfo(x.dtype).min
        weights = weights.view(b, HEADS, t, t) + mask
        weights = weights.view(b * HEADS, t, t)
        weights = F.softmax(weights, dim=-1)
        probs = F.dropout(weights, p=self.drop.p, training=self.training)
        return self.joined(torch.bmm(probs, v).view(b, HEADS, t, HEAD))


class Bert(Base):
    """An additive mask of -10000."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / math.sqrt(HEAD)
        extended = (1.0 - (x[:, None, None, :, 0] > -0.7).to(x.dtype)) * -10000.0
        scores = scores + extended
        probs = self.drop(nn.Softmax(dim=-1)(scores))
        return self.joined(torch.matmul(probs, v))


class Llama(Base):
    """The softmax in float32, with a causal mask that is added."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(HEAD)
        mask = torch.full((x.size(1), x.size(1)), float("-inf")).triu(1).type_as(scores)
        scores = scores + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(q)
        return self.joined(torch.matmul(scores, v))


class Scratch(Base):
    """ "nqhd,nkhd->nhqk": no transposition."""

    def forward(self, x: Any) -> Any:
        q, k, v = (part.transpose(1, 2) for part in self.heads(x))
        energy = torch.einsum("nqhd,nkhd->nhqk", [q, k])
        mask = torch.tril(torch.ones(x.size(1), x.size(1))).expand(x.size(0), 1, -1, -1)
        energy = energy.masked_fill(mask == 0, float("-1e20"))
        weights = torch.softmax(energy / (WIDTH ** (1 / 2)), dim=3)
        y = torch.einsum("nhql,nlhd->nqhd", [weights, v])
        return self.out(y.reshape(x.size(0), -1, WIDTH))


class Where(Base):
    """GPT-2 of Transformers, before 2025."""

    def forward(self, x: Any) -> Any:
        t = x.size(1)
        q, k, v = self.heads(x)
        w = torch.matmul(q, k.transpose(-1, -2))
        w = w / torch.full([], HEAD**0.5, dtype=w.dtype, device=w.device)
        mask = self.bias[:, :, :t, :t].bool()
        low = torch.full([], torch.finfo(w.dtype).min, dtype=w.dtype).to(w.device)
        w = torch.where(mask, w.to(w.dtype), low)
        w = nn.functional.softmax(w, dim=-1).type(v.dtype)
        return self.joined(torch.matmul(self.drop(w), v))


class Alibi(Base):
    """A bias for each head that does not learn, and a learned temperature."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p)
        self.temperature = nn.Parameter(torch.full((HEADS, 1, 1), 0.3))

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        places = torch.arange(x.size(1))
        bias = -(places[:, None] - places[None]).abs() * torch.rand(HEADS, 1, 1)
        dots = q @ k.mT * self.temperature.exp()
        dots += bias
        return self.joined(dots.softmax(-1) @ v)


class Convolved(Base):
    """Over pixels, as in diffusion models: three dimensions, keys of a layout of their own."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        k = k.permute(0, 2, 1).contiguous()
        w = torch.bmm(q, k) * WIDTH**-0.5
        return self.out(torch.bmm(F.softmax(w, dim=2), v))


class Cached(Base):
    """Fewer queries than keys."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        q = q[:, :, -5:]
        far = torch.ones(5, x.size(1)).triu(x.size(1) - 4).bool()
        scores = (q @ k.transpose(2, 3) * HEAD**-0.5).masked_fill(far, -1e4)
        return self.joined(scores.softmax(-1) @ v)


class Gpt1(Base):
    """w * b - 1e4 * (1 - b): not ours."""

    fuses = False

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        b = self.bias[:, :, : x.size(1), : x.size(1)]
        w = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(HEAD)
        w = w * b + -1e4 * (1 - b)
        return self.joined(torch.matmul(nn.Softmax(dim=-1)(w), v))


class Stable(Base):
    """The largest score is taken off."""

    fuses = False

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        return self.joined(torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v))


class Relative(Base):
    """A bias that learns: no fused kernel on a CPU."""

    fuses = False

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p)
        self.table = nn.Parameter(torch.randn(HEADS, 64, 64) * 0.1)

    def forward(self, x: Any) -> Any:
        t = x.size(1)
        q, k, v = self.heads(x)
        attn = (q * HEAD**-0.5) @ k.transpose(-2, -1)
        attn = attn + self.table[:, :t, :t].unsqueeze(0)
        return self.joined(self.drop(attn.softmax(dim=-1)) @ v)


class Reweighed(Base):
    """What comes after the softmax is not attention."""

    fuses = False

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        attn = torch.softmax(q @ k.transpose(-2, -1), -1)
        attn = attn / (attn.sum(-2, keepdim=True) + 1e-9)
        return self.joined(attn @ v)


class Rectified(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Any) -> Any:
        ctx.save_for_backward(scores)
        return scores.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * (ctx.saved_tensors[0] > 0)


class Custom(Base):
    """A function of the program's own is given the scores."""

    fuses = False

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        scores = Rectified.apply(q @ k.transpose(-2, -1))
        return self.joined(scores.softmax(-1) @ v)


class Drawn(nn.Module):
    """Attention as a test case says."""

    def __init__(self, ops: Callable[[Any], Any]) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(1))
        self.ops = ops

    def forward(self, x: Any) -> Any:
        q, k, v = (x * self.one).unbind(0)
        return self.ops(q @ k.transpose(-1, -2)).softmax(-1) @ v


STYLES = [NanoGPT, Annotated, ViT, Lucid, Heads3D, Bert, Llama, Scratch, Where, Alibi, Convolved,
          Cached, Gpt1, Stable, Relative, Reweighed, Custom]  # fmt: skip
FUSED = [style for style in STYLES if style.fuses]
WRITTEN = [style for style in STYLES if not style.fuses]
