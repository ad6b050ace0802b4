# A little GPT over a word-level corpus -- tuned for a bf16-capable CPU.
import argparse
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
import random


@dataclass
class GPTConfig:
    vocab_size: int = 0
    block_size: int = 128
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 128
    dropout: float = 0.1


def make_text(n_words, seed):
    """Invent a language: ~1200 words, each with a handful of likely followers."""
    rnd = random.Random(seed)
    syll = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words = sorted({"".join(rnd.choices(syll, k=rnd.randint(1, 3))) for _ in range(1300)})
    followers = {w: rnd.sample(words, 6) for w in words}
    out, w = [], words[0]
    for _ in range(n_words):
        out.append(w)
        if rnd.random() < 0.12:
            out.append(".")
            w = rnd.choice(words[:80])
        else:
            w = rnd.choices(followers[w], weights=[12, 6, 3, 2, 1, 1])[0]
    return " ".join(out)


def windows(ids, block_size):
    """All windows of block_size + 1 words, as a view: one gather makes a batch."""
    return torch.tensor(ids).unfold(0, block_size + 1, 1)[:len(ids) - block_size - 1]


class FastDropout(nn.Module):
    """Dropout with 16 random bits an element from a fast generator
    (torch's CPU bernoulli_ is serial and takes ~7 ns an element)."""
    bits = np.random.SFC64(1337)

    def __init__(self, p):
        super().__init__()
        self.p = p
        self.cut = int(round(p * 65536)) - 32768
        self.scale = 65536 / (65536 - round(p * 65536))

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        n = x.numel()
        r = torch.from_numpy(FastDropout.bits.random_raw((n + 3) // 4).view(np.int16))[:n]
        return x * (r >= self.cut).view(x.shape).to(x.dtype).mul_(self.scale)


class CausalSelfAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        assert cfg.n_embd % cfg.n_head == 0
        self.n_head = cfg.n_head
        self.query = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.key = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.value = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.proj = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.resid_drop = FastDropout(cfg.dropout)
        bias = torch.full((cfg.block_size, cfg.block_size), float("-inf")).triu_(1)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x):
        B, T, C = x.size()
        w = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        b = torch.cat([self.query.bias, self.key.bias, self.value.bias])
        q, k, v = F.linear(x, w, b).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        # measured: SDPA's CPU flash backward is 3x slower than these two bf16 bmm's at T = 128
        q = q * (1.0 / math.sqrt(C // self.n_head))
        with torch.autocast("cpu", enabled=False):      # softmax stays in bf16
            att = torch.softmax(q @ k.transpose(-2, -1) + self.bias[:T, :T].to(q.dtype), dim=-1)
            y = att @ v
        y = y.transpose(1, 2).reshape(B, T, C)
        return self.resid_drop(self.proj(y))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln1 = nn.LayerNorm(cfg.n_embd)
        self.ln2 = nn.LayerNorm(cfg.n_embd)
        self.attn = CausalSelfAttention(cfg)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.n_embd, 4 * cfg.n_embd),
            nn.GELU(),
            nn.Linear(4 * cfg.n_embd, cfg.n_embd),
            FastDropout(cfg.dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        return x


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.n_embd)
        self.pos_emb = nn.Parameter(torch.zeros(1, cfg.block_size, cfg.n_embd))
        self.drop = FastDropout(cfg.dropout)
        self.blocks = nn.Sequential(*[Block(cfg) for _ in range(cfg.n_layer)])
        self.ln_f = nn.LayerNorm(cfg.n_embd)
        self.head = nn.Linear(cfg.n_embd, cfg.vocab_size, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            m.weight.data.normal_(mean=0.0, std=0.02)
            if isinstance(m, nn.Linear) and m.bias is not None:
                m.bias.data.zero_()

    def forward(self, idx, targets=None):
        b, t = idx.size()
        x = self.drop(self.tok_emb(idx) + self.pos_emb[:, :t, :])
        x = self.blocks(x)
        x = self.ln_f(x)
        logits = self.head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))
        return logits, loss


class Trainer:
    def __init__(self, model, train_win, val_win, args):
        self.model, self.args = model, args
        self.train_win, self.val_win = train_win, val_win
        self.params = list(model.parameters())
        # only the indices go through the loader: same order as before
        self.train_loader = DataLoader(range(len(train_win)), batch_size=args.batch_size, shuffle=True,
                                       drop_last=True, collate_fn=torch.tensor)
        self.opt = self.configure_optimizer()
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self.lr_lambda)
        self.losses = torch.zeros(args.steps)

    def configure_optimizer(self):
        decay = [p for p in self.model.parameters() if p.dim() >= 2]
        no_decay = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.args.lr, betas=(0.9, 0.95), fused=True)

    def lr_lambda(self, step):
        if step < self.args.warmup:
            return (step + 1) / self.args.warmup
        p = (step - self.args.warmup) / max(1, self.args.schedule_steps - self.args.warmup)
        return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, p)))

    def loss(self, win):
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(win[:, :-1], win[:, 1:])[1]

    @torch.inference_mode()
    def evaluate(self, max_batches=10):
        self.model.eval()
        torch.empty((), dtype=torch.int64).random_()
        bs = self.args.batch_size
        loss = sum(self.loss(self.val_win[i * bs:(i + 1) * bs]).item() for i in range(max_batches)) / max_batches
        self.model.train()
        return loss

    def fit(self):
        self.model.train()
        step = 0
        while step < self.args.steps:
            for idx in self.train_loader:
                loss = self.loss(self.train_win[idx])
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                grad_norm = torch.nn.utils.clip_grad_norm_(self.params, 1.0, foreach=True)
                self.opt.step()
                self.sched.step()
                self.losses[step] = loss.detach()
                step += 1
                if step % 10 == 0:
                    print(f"step {step:5d} | loss {loss.item():.6f} | norm {grad_norm.item():.4f} "
                          f"| lr {self.sched.get_last_lr()[0]:.3e}", flush=True)
                if step % self.args.eval_every == 0:
                    val = self.evaluate()
                    print(f"step {step:5d} | val loss {val:.6f} | ppl {math.exp(val):.3f}", flush=True)
                if step >= self.args.steps:
                    break
        torch.save(self.model.state_dict(), self.args.out)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--schedule_steps", type=int, default=400)
    ap.add_argument("--batch_size", type=int, default=24)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--warmup", type=int, default=40)
    ap.add_argument("--eval_every", type=int, default=100)
    ap.add_argument("--seed", type=int, default=1337)
    ap.add_argument("--out", default="word_gpt_by_hand.pt")
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    text = make_text(120_000, args.seed).split()
    vocab = sorted(set(text))
    stoi = {w: i for i, w in enumerate(vocab)}
    ids = [stoi[w] for w in text]
    n = int(0.9 * len(ids))
    cfg = GPTConfig(vocab_size=len(vocab))
    train_win, val_win = windows(ids[:n], cfg.block_size), windows(ids[n:], cfg.block_size)

    model = GPT(cfg)
    print("vocab", len(vocab), "parameters: %.2fM" % (sum(p.numel() for p in model.parameters()) / 1e6))
    Trainer(model, train_win, val_win, args).fit()
