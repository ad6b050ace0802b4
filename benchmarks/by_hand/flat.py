"""Helpers of the by-hand versions.

Layout: the sequences of a batch are sorted by length and cut into a few groups, each padded to its own longest;
all groups lie behind one another in one [tokens, dim] tensor.  Everything but attention works on that tensor.
"""
import numpy as np
import torch
import torch.nn.functional as F

BF = torch.bfloat16
_rng = np.random.SFC64(1234)


def plan(lengths, overhead=40):
    """lengths: one list (sorted, longest first) or several lists in the same order.  Returns group sizes that
    minimise padded tokens plus `overhead` tokens per group."""
    rows = [lengths] if isinstance(lengths[0], int) else lengths
    n = len(rows[0])
    best, cut = [0.0] + [float("inf")] * n, [0] * (n + 1)
    for j in range(1, n + 1):
        top = [0] * len(rows)
        for i in range(j - 1, -1, -1):
            top = [max(t, r[i]) for t, r in zip(top, rows)]
            c = best[i] + (j - i) * sum(top) + overhead
            if c < best[j]:
                best[j], cut[j] = c, i
    sizes, j = [], n
    while j:
        sizes.append(j - cut[j])
        j = cut[j]
    return sizes[::-1]


def pad_flat(seqs, sizes, pad):
    """List of id lists -> (flat ids, positions, [(n, L), ...], lengths)."""
    ids, pos, shape, k = [], [], [], 0
    for n in sizes:
        group = seqs[k:k + n]
        L = max(len(s) for s in group)
        a = np.full((n, L), pad, dtype=np.int64)
        for row, s in zip(a, group):
            row[:len(s)] = s
        ids.append(a.ravel())
        pos.append(np.tile(np.arange(L), n))
        shape.append((n, L))
        k += n
    return torch.from_numpy(np.concatenate(ids)), torch.from_numpy(np.concatenate(pos)), shape


def key_bias(lengths, shape, dtype=BF):
    """Per group an additive mask [n, 1, 1, L], or None where nothing is padded."""
    out, k = [], 0
    for n, L in shape:
        ln = torch.tensor(lengths[k:k + n])
        k += n
        pad = torch.arange(L)[None, :] >= ln[:, None]
        out.append(torch.zeros(n, L, dtype=dtype).masked_fill_(pad, torch.finfo(dtype).min / 2)[:, None, None]
                   if pad.any() else None)
    return out


class _Pool:
    """Ready-made dropout factors (0 or 1 / (1 - p)); an element serves about eight times, at random offsets, before
    it is drawn anew.  Far cheaper than the CPU's Bernoulli generator for every element of every mask."""

    def __init__(self, p, dtype, size=1 << 23):
        self.p, self.dtype, self.used, self.at = p, dtype, 0, 0
        self.pool = torch.empty(size, dtype=dtype)
        for i in range(0, size, 1 << 20):
            self.refresh(1 << 20)

    def refresh(self, n):
        bits = torch.from_numpy(_rng.random_raw(n // 4).view(np.int16))
        keep = bits >= int(round(self.p * 65536)) - 32768
        torch.mul(keep, 1 / (1 - self.p), out=self.pool[self.at:self.at + n])
        self.at = (self.at + n) % len(self.pool)

    def take(self, n):
        self.used += n
        start = int(_gen.integers(0, (len(self.pool) - n) // 64)) * 64
        return self.pool[start:start + n]


    def renew(self):
        while self.used >= 8 << 17:
            self.refresh(1 << 17)
            self.used -= 8 << 17


_pools = {}
_gen = np.random.default_rng(5678)


def new_masks():
    """To be called before each forward pass (not within a step: the backward pass needs the step's masks)."""
    for pool in _pools.values():
        pool.renew()


def dropout(x, p, training=True):
    if not training or p == 0:
        return x
    if (p, x.dtype) not in _pools:
        _pools[p, x.dtype] = _Pool(p, x.dtype)
    return x * _pools[p, x.dtype].take(x.numel()).view(x.shape)


def lin(x, layer):
    return F.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))


def lin_cat(x, layers):
    w = torch.cat([m.weight for m in layers]).to(x.dtype)
    b = None if layers[0].bias is None else torch.cat([m.bias for m in layers]).to(x.dtype)
    return F.linear(x, w, b)


def heads(x, shape, H):
    """Flat [T, k*H*d] -> per group [k, n, H, L, d]."""
    parts = x.split([n * L for n, L in shape])
    k = 1 if x.dim() == 2 else x.shape[1]
    return [p.view(n, L, k, H, -1).permute(2, 0, 3, 1, 4).unbind(0) for p, (n, L) in zip(parts, shape)]


def merge(outs):
    """Per group [n, H, L, d] -> flat [T, H*d]."""
    return torch.cat([o.transpose(1, 2).reshape(o.shape[0] * o.shape[2], -1) for o in outs])


def attend(q, k, v, bias, scale, p, training=True):
    """Attention with dropout on the probabilities; bias is added to the scores.  Short sequences in float32: small
    batched bfloat16 products are slower than float32 ones here."""
    dtype = q.dtype
    if k.shape[2] < 64:
        q, k, v = q.float(), k.float(), v.float()
    s = torch.matmul(q * scale if scale != 1 else q, k.transpose(-1, -2))
    if bias is not None:
        s = s + bias
    return torch.matmul(dropout(F.softmax(s, -1), p, training), v).to(dtype)


def norm(x, ln):
    return F.layer_norm(x, ln.normalized_shape, ln.weight, ln.bias, ln.eps)
