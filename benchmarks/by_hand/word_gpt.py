# A little GPT over a word-level corpus, from scratch.
import argparse
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
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


class WordDataset(Dataset):
    def __init__(self, ids, block_size):
        self.data = ids
        self.block_size = block_size

    def __len__(self):
        return len(self.data) - self.block_size - 1

    def __getitem__(self, i):
        x = torch.tensor(self.data[i:i + self.block_size], dtype=torch.long)
        y = torch.tensor(self.data[i + 1:i + self.block_size + 1], dtype=torch.long)
        return x, y


class CausalSelfAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        assert cfg.n_embd % cfg.n_head == 0
        self.n_head = cfg.n_head
        self.query = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.key = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.value = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.proj = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.resid_drop = nn.Dropout(cfg.dropout)
        self.register_buffer("mask", torch.tril(torch.ones(cfg.block_size, cfg.block_size)).view(
            1, 1, cfg.block_size, cfg.block_size))

    def forward(self, x):
        B, T, C = x.size()
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = self.query(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
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
            nn.Dropout(cfg.dropout),
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
        self.drop = nn.Dropout(cfg.dropout)
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
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


class Trainer:
    def __init__(self, model, train_ds, val_ds, args):
        self.model, self.args = model, args
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = self.model.to(self.device)
        self.train_loader = DataLoader(train_ds, batch_size=args.batch_size, shuffle=True, drop_last=True)
        self.val_loader = DataLoader(val_ds, batch_size=args.batch_size, shuffle=False)
        self.opt = self.configure_optimizer()
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self.lr_lambda)
        self.losses = []

    def configure_optimizer(self):
        decay = [p for p in self.model.parameters() if p.dim() >= 2]
        no_decay = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.args.lr, betas=(0.9, 0.95))

    def lr_lambda(self, step):
        if step < self.args.warmup:
            return (step + 1) / self.args.warmup
        p = (step - self.args.warmup) / max(1, self.args.schedule_steps - self.args.warmup)
        return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, p)))

    @torch.no_grad()
    def evaluate(self, max_batches=10):
        self.model.eval()
        losses = []
        for i, (x, y) in enumerate(self.val_loader):
            if i >= max_batches:
                break
            x, y = x.to(self.device), y.to(self.device)
            _, loss = self.model(x, y)
            losses.append(loss.item())
        self.model.train()
        return sum(losses) / len(losses)

    def fit(self):
        self.model.train()
        step = 0
        while step < self.args.steps:
            for x, y in self.train_loader:
                x, y = x.to(self.device), y.to(self.device)
                _, loss = self.model(x, y)
                self.opt.zero_grad()
                loss.backward()
                grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.sched.step()
                self.losses.append(loss.item())
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
    ap.add_argument("--out", default="word_gpt.pt")
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    text = make_text(120_000, args.seed).split()
    vocab = sorted(set(text))
    stoi = {w: i for i, w in enumerate(vocab)}
    ids = [stoi[w] for w in text]
    n = int(0.9 * len(ids))
    cfg = GPTConfig(vocab_size=len(vocab))
    train_ds, val_ds = WordDataset(ids[:n], cfg.block_size), WordDataset(ids[n:], cfg.block_size)

    model = GPT(cfg)
    print("vocab", len(vocab), "parameters: %.2fM" % (sum(p.numel() for p in model.parameters()) / 1e6))
    Trainer(model, train_ds, val_ds, args).fit()
