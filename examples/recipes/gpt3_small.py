"""Train GPT-3 Small (125 M parameters), word by word: https://arxiv.org/abs/2005.14165

python gpt3_small.py            # 12 layers, 768 wide, on the source of Python's library
python gpt3_small.py --small    # 6 layers, 384 wide, on two CPU cores: validation loss 3.43

Stopped at any time, the same command goes on where it was.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import data
import torch
import torch.nn.functional as F
from torch import nn

import flatout


@dataclass(frozen=True)
class Config:
    layers: int = 12
    width: int = 768
    heads: int = 12
    context: int = 2048
    vocabulary: int = 50304  # 50257 would do; a multiple of 64 makes whole tiles
    batch: int = 16
    accumulate: int = 16  # half a million words in each optimizer step
    steps: int = 20_000  # optimizer steps
    rate: float = 6e-4


SMALL = Config(6, 384, 6, 256, 4096, batch=8, accumulate=1, steps=400, rate=2e-3)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.norm1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)  # one product, not three
        self.out = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        # One fused kernel: the context x context table of weights is never written to memory.
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # Layers that add to the residual stream begin smaller, the more there are of them.
                adds = name.endswith(("out.weight", "down.weight"))
                std = 0.02 / (2 * config.layers) ** 0.5 if adds else 0.02
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        """Logits [N, L, vocabulary] of the word that follows each of tokens [N, L]."""
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_fn(model, tokens):
    """Mean surprise, in nats, at each word after the first of tokens [N, context + 1]."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def make_optimizer(model, config):
    # Decay is for what multiplies; on norms and biases it only slows learning.
    multiply = [p for p in model.parameters() if p.dim() > 1]
    others = {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(
        [{"params": multiply}, others], config.rate, (0.9, 0.95), weight_decay=0.1
    )
    # Warm-up in the first twentieth, then a cosine down to a tenth.
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        config.rate,
        total_steps=config.steps,
        pct_start=0.05,
        cycle_momentum=False,
        final_div_factor=0.4,
    )
    return optimizer, scheduler


@torch.no_grad()
def validation_loss(model, loader):
    model.eval()
    return torch.stack([loss_fn(model, tokens) for tokens in loader]).mean().item()


def train(config, out, small):
    torch.manual_seed(0)
    _, train_text, test_text = data.text(config.vocabulary, small)
    # One token more than the context: the last word's successor.
    windows = data.Windows(train_text, config.context, more=1)
    loader = flatout.loader(windows, config.batch, shuffle=True, drop_last=True)
    test = data.Windows(test_text[: 64 * config.context + 1], config.context, more=1)
    # The model goes to the device before the optimizer is built, which keeps its parameters.
    model = GPT(config).to(flatout.device())
    optimizer, scheduler = make_optimizer(model, config)
    # Precision, compilation and CUDA graph are chosen for this machine. A step of the optimizer
    # is made of `accumulate` batches, with the gradient of one large batch.
    step = flatout.train_step(
        model, loss_fn, optimizer, scheduler=scheduler, clip_norm=1.0, accumulate=config.accumulate
    )
    # Stopped (by SIGTERM too) and started again, it goes on with the very batch that is next.
    with flatout.Checkpoint(out, every="10m", step=step, loader=loader) as checkpoint:
        checkpoint.resume()
        while checkpoint.steps < config.steps:
            for batch in loader:  # each pass is one epoch
                loss = step(batch)
                if step.pending:  # more batches make one step of the optimizer
                    continue
                checkpoint.after_step()
                if checkpoint.steps % 50 == 0:  # .item() waits for the device: not in every step
                    print(f"step {checkpoint.steps} loss {loss.item():.4f}", flush=True)
                if checkpoint.steps == config.steps:
                    break
        checkpoint.save()
    return validation_loss(model, flatout.loader(test, config.batch))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a size for two CPU cores")
    parser.add_argument("--out", type=Path, default=Path("gpt3_small"), help="for checkpoints")
    args = parser.parse_args()
    found = train(SMALL if args.small else Config(), args.out, args.small)
    print(f"validation loss {found:.4f}")
