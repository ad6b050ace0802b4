"""Fine-tune a (small) GPT-2 with LoRA, written by hand -- tuned for a CPU with bf16.

The texts of a step lie in one row without padding, both micro-batches at once: every token carries the
weight that its micro-batch gives it. The frozen matrices are bf16, packed once for both directions.
"""
import argparse
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

BF16 = torch.bfloat16


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


# ---------------------------------------------------------------- data

def make_vocabulary(n_words, rng):
    syllables = ["ba", "de", "ki", "lo", "mu", "na", "po", "ri", "sa", "te", "vu", "za", "shi", "tra", "ne", "go"]
    words = set()
    while len(words) < n_words:
        words.add("".join(rng.choice(syllables) for _ in range(rng.randint(1, 4))))
    return sorted(words)


def make_texts(n_texts, words, rng):
    """Texts out of topics: every topic has its own words, and a word has a few favourite successors."""
    topics = [rng.sample(words, 150) for _ in range(20)]
    follow = {w: rng.sample(words, 3) for w in words}
    texts = []
    for _ in range(n_texts):
        topic = rng.choice(topics)
        n = min(150, max(8, int(rng.lognormvariate(3.8, 0.6))))
        text = [rng.choice(topic)]
        while len(text) < n:
            if rng.random() < 0.6:
                text.append(rng.choice(follow[text[-1]]))
            else:
                # small ranks are more frequent
                text.append(topic[int(len(topic) * rng.random() ** 3)])
        texts.append(" ".join(text))
    return texts


class Tokenizer:
    def __init__(self, words):
        self.itos = ["<pad>", "<bos>", "<eos>", "<unk>"] + list(words)
        self.stoi = {w: i for i, w in enumerate(self.itos)}
        self.pad_token_id = 0
        self.bos_token_id = 1
        self.eos_token_id = 2

    def __len__(self):
        return len(self.itos)

    def encode(self, text, max_length):
        ids = [self.stoi.get(w, 3) for w in text.split()]
        return [self.bos_token_id] + ids[:max_length - 2] + [self.eos_token_id]


class Batch:
    """The texts of some micro-batches, flat. The last word of a text predicts nothing, and is left out."""

    def __init__(self, micro_batches):
        texts = [t for m in micro_batches for t in m]
        lengths = [len(t) - 1 for t in texts]
        self.n, self.length = len(texts), max(lengths)
        self.ids = torch.tensor([i for t in texts for i in t[:-1]])
        self.labels = torch.tensor([i for t in texts for i in t[1:]])
        self.pos = torch.tensor([i for n in lengths for i in range(n)])
        self.where = torch.tensor([r * self.length + i for r, n in enumerate(lengths) for i in range(n)])
        self.weights = torch.tensor([1 / (len(micro_batches) * sum(len(t) - 1 for t in m))
                                     for m in micro_batches for t in m for _ in t[1:]])


# ---------------------------------------------------------------- pieces with a backward pass of their own

rng = None                                              # SFC64: some 20 times faster than Tensor.bernoulli_


def keep_bits(shape, p):
    """int16: all bits set with probability 1 - p, else none."""
    n = math.prod(shape)
    r = torch.from_numpy(rng.integers(0, 2 ** 64 - 1, (n + 3) // 4, dtype=np.uint64, endpoint=True).view(np.int16))
    mask = torch.empty(shape, dtype=torch.int16)
    return torch.lt(r[:n].view(shape), round((1 - p) * 65536) - 32768, out=mask).neg_()


def apply_bits(x, mask):
    return (x.view(torch.int16) & mask).view(BF16)


class Drop(torch.autograd.Function):
    """Dropout without its factor 1 / (1 - p), which the weights before it hold."""

    @staticmethod
    def forward(ctx, x, p):
        ctx.mask = keep_bits(x.shape, p)
        return apply_bits(x, ctx.mask)

    @staticmethod
    def backward(ctx, g):
        return apply_bits(g, ctx.mask), None


class Packed:
    """A frozen linear layer; weight: [in, out]."""

    def __init__(self, weight, bias=None, factor=1.):
        w = (weight.detach() * factor).to(BF16)
        pack = torch.ops.mkldnn._reorder_linear_weight
        self.fwd, self.bwd = pack(w.t().contiguous(), 400), pack(w.contiguous(), 400)
        self.bias = None if bias is None else (bias.detach() * factor).to(BF16)

    def forward(self, x):
        return torch.ops.mkldnn._linear_pointwise(x, self.fwd, self.bias, "none", [], "")

    def backward(self, g):
        return torch.ops.mkldnn._linear_pointwise(g, self.bwd, None, "none", [], "")


class Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, packed):
        ctx.packed = packed
        return packed.forward(x)

    @staticmethod
    def backward(ctx, g):
        return ctx.packed.backward(g), None


class LoRA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, A, B, packed, scaling, p):
        ctx.packed, ctx.scaling = packed, scaling
        A, B = A.to(BF16), (B * scaling).to(BF16)
        ctx.mask = keep_bits(x.shape, p) if p else None
        xd = x if ctx.mask is None else apply_bits(x, ctx.mask)
        u = xd @ A
        ctx.save_for_backward(xd, u, A, B)
        return packed.forward(x).addmm_(u, B)

    @staticmethod
    def backward(ctx, g):
        xd, u, A, B = ctx.saved_tensors
        du = g @ B.t()
        dB = (u.t() @ g).float() * ctx.scaling
        dA = (xd.t() @ du).float()
        dx = None
        if ctx.needs_input_grad[0]:
            dx = ctx.packed.backward(g).add_(apply_bits(du @ A.t(), ctx.mask))
        return dx, dA, dB, None, None, None


class Attention(torch.autograd.Function):
    """Causal, with dropout; qkv is flat, the products work on padded rows. q is scaled already."""

    @staticmethod
    def forward(ctx, qkv, batch, n_head, p):
        N, L, D = batch.n, batch.length, qkv.shape[1] // 3
        padded = qkv.new_zeros(N * L, 3 * D).index_copy_(0, batch.where, qkv)
        q, k, v = (t.reshape(N * n_head, L, -1) for t in padded.view(N, L, 3, n_head, -1).permute(2, 0, 3, 1, 4))
        causal = torch.full((L, L), -math.inf, dtype=BF16).triu_(1)
        s = torch.bmm(q, k.transpose(1, 2)).add_(causal)
        e = s.sub_(s.amax(-1, keepdim=True)).exp_()
        z = e.sum(-1, keepdim=True, dtype=torch.float32).reciprocal_()
        P = e.mul_(z.to(BF16))
        mask = keep_bits(P.shape, p) if p else None
        Pd = apply_bits(P, mask) if p else P
        f = 1 / (1 - p)
        o = torch.bmm(Pd, v * f if p else v).view(N, n_head, L, -1).transpose(1, 2).reshape(N * L, D)
        ctx.save_for_backward(q, k, v, P, Pd, mask)
        ctx.batch, ctx.n_head, ctx.f = batch, n_head, f
        return o.index_select(0, batch.where)

    @staticmethod
    def backward(ctx, do):
        q, k, v, P, Pd, mask = ctx.saved_tensors
        N, L, H = ctx.batch.n, ctx.batch.length, ctx.n_head
        do = do.new_zeros(N * L, do.shape[1]).index_copy_(0, ctx.batch.where, do * ctx.f)
        do = do.view(N, L, H, -1).transpose(1, 2).reshape(N * H, L, -1)
        dv = torch.bmm(Pd.transpose(1, 2), do)
        dP = apply_bits(torch.bmm(do, v.transpose(1, 2)), mask).mul_(P)
        dS = dP.sub_(P * dP.sum(-1, keepdim=True))
        d = torch.stack([torch.bmm(dS, k), torch.bmm(dS.transpose(1, 2), q), dv])
        d = d.view(3, N, H, L, -1).permute(1, 3, 0, 2, 4).reshape(N * L, -1)
        return d.index_select(0, ctx.batch.where), None, None, None


# ---------------------------------------------------------------- model

class LoRAGPT2:
    """The forward pass of a frozen GPT2LMHeadModel with low-rank matrices around c_attn and both c_proj.

    Factors 1 / (1 - p) of the dropouts lie in the frozen weights; without dropout they are taken back.
    """

    def __init__(self, model, r, alpha, lora_dropout):
        c = model.config
        self.config, self.lora_p = c, lora_dropout
        self.n_head, D, self.p = c.n_head, c.n_embd, c.resid_pdrop
        assert c.attn_pdrop == c.embd_pdrop == c.resid_pdrop
        self.wte, self.wpe = model.transformer.wte.weight.detach(), model.transformer.wpe.weight.detach()
        self.head = Packed(F.pad(self.wte, (0, 0, 0, -c.vocab_size % 64)).t())
        self.eps = c.layer_norm_epsilon
        self.ln_f = self.norm_weights(model.transformer.ln_f)
        q_scale = torch.cat([torch.full((D,), (D // c.n_head) ** -0.5), torch.ones(2 * D)])
        keep, keep_lora = 1 - self.p, 1 - lora_dropout
        self.scale_resid, self.scale_attn = alpha / r / keep / keep_lora, alpha / r / keep_lora
        self.q_scale = q_scale
        self.blocks, shapes = [], []
        for b in model.transformer.h:
            a, m = b.attn, b.mlp
            self.blocks.append((self.norm_weights(b.ln_1), Packed(a.c_attn.weight * q_scale, a.c_attn.bias * q_scale),
                                Packed(a.c_proj.weight, a.c_proj.bias, 1 / keep),
                                self.norm_weights(b.ln_2), Packed(m.c_fc.weight, m.c_fc.bias),
                                Packed(m.c_proj.weight, m.c_proj.bias, 1 / keep)))
            for layer in (a.c_attn, a.c_proj, m.c_proj):
                shapes += [(layer.weight.shape[0], r), (r, layer.weight.shape[1])]
        # all trained numbers in one tensor, and all gradients in another
        self.flat = nn.Parameter(torch.zeros(sum(a * b for a, b in shapes)))
        self.flat.grad = torch.zeros_like(self.flat)
        self.lora = []
        sizes = [a * b for a, b in shapes]
        for w, g, shape in zip(self.flat.data.split(sizes), self.flat.grad.split(sizes), shapes):
            w = w.view(shape).requires_grad_()
            w.grad = g.view(shape)
            self.lora.append(w)
        for A in self.lora[0::2]:
            nn.init.kaiming_uniform_(A, a=math.sqrt(5))

    @staticmethod
    def norm_weights(ln):
        return ln.weight.detach(), ln.bias.detach()

    def norm(self, x, ln):
        return F.layer_norm(x, x.shape[1:], *ln, self.eps).to(BF16)

    def losses(self, batch, training):
        """The loss of every token."""
        p, lora_p = (self.p, self.lora_p) if training else (0., 0.)
        keep, keep_lora = (1., 1.) if training else (1 - self.p, 1 - self.lora_p)

        def drop(x):
            return Drop.apply(x, p) if training else x * keep

        h = self.wte[batch.ids] + self.wpe[batch.pos]
        if training:
            h = h * (keep_bits(h.shape, p).float() / (p - 1))           # kept: -1
        lora = iter(self.lora)
        s_attn, s_resid = self.scale_attn * keep_lora, self.scale_resid * keep_lora
        for ln_1, c_attn, c_proj, ln_2, c_fc, c_proj2 in self.blocks:
            x = self.norm(h, ln_1)
            A, B = next(lora), next(lora)
            qkv = LoRA.apply(x, A, B * self.q_scale, c_attn, s_attn, lora_p)
            o = Attention.apply(qkv, batch, self.n_head, p)
            h = h + drop(LoRA.apply(o, next(lora), next(lora), c_proj, s_resid, lora_p))
            x = F.gelu(Frozen.apply(self.norm(h, ln_2), c_fc), approximate="tanh")
            h = h + drop(LoRA.apply(x, next(lora), next(lora), c_proj2, s_resid, lora_p))
        logits = Frozen.apply(self.norm(h, self.ln_f), self.head).float()[:, :self.config.vocab_size]
        return F.cross_entropy(logits, batch.labels, reduction="none")


# ---------------------------------------------------------------- training

def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
    def lr_lambda(step):
        if step < num_warmup_steps:
            return step / max(1, num_warmup_steps)
        return max(0.0, (num_training_steps - step) / max(1, num_training_steps - num_warmup_steps))
    return LambdaLR(optimizer, lr_lambda)


@torch.no_grad()
def evaluate(model, loader):
    losses = [model.losses(Batch([m]), training=False).mean().item() for m in loader]
    return sum(losses) / len(losses)


def forever(loader):
    while True:
        yield from loader


def train(model, loader, optimizer, scheduler, args):
    micro_batches = forever(loader)
    for step in range(1, args.steps + 1):
        batch = Batch([next(micro_batches) for _ in range(args.grad_accum)])
        loss = torch.dot(model.losses(batch, training=True), batch.weights)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_([model.flat], args.max_grad_norm)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--grad_accum", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup_steps", type=int, default=30)
    parser.add_argument("--total_steps", type=int, default=600)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--lora_r", type=int, default=8)
    parser.add_argument("--lora_alpha", type=int, default=16)
    parser.add_argument("--lora_dropout", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    global rng
    set_seed(args.seed)
    rng = np.random.Generator(np.random.SFC64(args.seed))
    words_rng = random.Random(args.seed)
    words = make_vocabulary(3000, words_rng)
    tokenizer = Tokenizer(words)
    texts = [tokenizer.encode(t, args.max_length) for t in make_texts(4000, words, words_rng)]
    train_loader = DataLoader(texts[:-100], batch_size=args.batch_size, shuffle=True, collate_fn=list)
    eval_loader = DataLoader(texts[-100:], batch_size=args.batch_size, shuffle=False, collate_fn=list)

    config = GPT2Config(vocab_size=len(tokenizer), n_positions=args.max_length, n_embd=384, n_layer=6, n_head=6,
                        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
                        pad_token_id=tokenizer.pad_token_id)
    model = LoRAGPT2(GPT2LMHeadModel(config), args.lora_r, args.lora_alpha, args.lora_dropout)
    print(f"trainable params: {model.flat.numel():,}")

    optimizer = AdamW([model.flat], lr=args.lr, weight_decay=0.01, fused=True)
    scheduler = get_linear_schedule_with_warmup(optimizer, args.warmup_steps, args.total_steps)

    train(model, train_loader, optimizer, scheduler, args)
    print(f"eval loss {evaluate(model, eval_loader):.6f}")


if __name__ == "__main__":
    main()
