"""Train a small GPT, byte by byte, on the source of Python's own standard library.

python train.py
python train.py --layers 12 --heads 12 --width 768 --context 1024 --batch-size 16
"""

import argparse
import math
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).resolve().parent


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (q, k, v)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, width, dropout):
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self.init_weights)

    def init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens, targets=None):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        return logits, loss

    @torch.no_grad()
    def generate(self, tokens, count):
        self.eval()
        for _ in range(count):
            logits, _ = self(tokens[:, -self.context :])
            # The vocabulary may be larger than a byte; those tokens mean nothing.
            chances = torch.softmax(logits[:, -1, :256] / 0.8, dim=-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1)], dim=1)
        return tokens


def load_text():
    """The standard library's modules as bytes: nine tenths to train, the rest to validate."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    if not files:
        raise SystemExit("this Python's standard library is not there as source files")
    text = b"\n".join(path.read_bytes() for path in files)
    data = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).astype(np.int64))
    split = len(data) * 9 // 10
    return data[:split], data[split:]


def get_batch(data, args, device):
    starts = torch.randint(len(data) - args.context - 1, (args.batch_size,))
    x = torch.stack([data[i : i + args.context] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + args.context] for i in starts])
    return x.to(device), y.to(device)


def learning_rate(step, args):
    """Linear warm-up, then half a cosine down to a tenth."""
    warmup = max(1, args.steps // 10)
    if step < warmup:
        return args.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, args.steps - warmup)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def evaluate(model, data, args, device):
    model.eval()
    losses = [model(*get_batch(data, args, device))[1].item() for _ in range(args.eval_batches)]
    model.train()
    return sum(losses) / len(losses)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "out", help="folder for checkpoints")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=256, help="50304 for GPT-3's size")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--eval-every", type=int, default=50)
    parser.add_argument("--eval-batches", type=int, default=8)
    parser.add_argument("--sample", type=int, default=200, help="bytes to generate at the end")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def train(model, optimizer, train_data, val_data, args, device):
    running_loss, start = 0.0, time.time()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        x, y = get_batch(train_data, args, device)
        _, loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running_loss += loss.item()
        if (step + 1) % 10 == 0:
            speed = 100 * (time.time() - start)
            print(f"step {step + 1} loss {running_loss / 10:.4f} {speed:.0f} ms/step", flush=True)
            running_loss, start = 0.0, time.time()
        if (step + 1) % args.eval_every == 0:
            val_loss = evaluate(model, val_data, args, device)
            print(f"step {step + 1} validation loss {val_loss:.4f}", flush=True)
            start = time.time()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_data, val_data = load_text()
    model = GPT(args.vocabulary, args.context, args.layers, args.heads, args.width, args.dropout)
    model = model.to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))

    train(model, optimizer, train_data, val_data, args, device)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.out / "gpt.pt")

    prompt = torch.tensor([list(b"def ")], device=device)
    sample = model.generate(prompt, args.sample)[0].tolist()
    print(bytes(sample).decode("ascii", errors="backslashreplace"))


if __name__ == "__main__":
    main()
