"""Train BERT-Large to fill in masked words: https://arxiv.org/abs/1810.04805

python bert_large.py            # 24 layers, 335 M parameters, on the source of Python's library
python bert_large.py --small    # 2 layers, on two CPU cores: 42 % of the hidden words are found

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
    layers: int = 24
    width: int = 1024
    heads: int = 16
    context: int = 384
    vocabulary: int = 30528  # a multiple of 64: whole tiles for the matrix units
    dropout: float = 0.1
    batch: int = 256  # what does not fit into memory is split, with the same gradient
    steps: int = 200_000
    rate: float = 2e-4


SMALL = Config(2, 256, 4, 64, 1024, 0.0, batch=64, steps=1000, rate=1e-3)


class Block(nn.Module):
    """Norms before the layers, unlike the first BERT: without that it needs a long warm-up."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.p = config.heads, config.dropout
        self.norm1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)  # one product, not three
        self.out = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        # One fused kernel: the context x context table of weights is never written to memory.
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0)
        x = x + F.dropout(self.out(y.transpose(1, 2).flatten(2)), self.p, self.training)
        y = self.down(F.gelu(self.up(self.norm2(x))))
        return x + F.dropout(y, self.p, self.training)


class Bert(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.transform = nn.Linear(config.width, config.width)
        self.transformed = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        self.head.weight = self.words.weight

    def forward(self, tokens, places):
        """Logits [N, M, vocabulary] at M places [N, M] of tokens [N, context]."""
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        # Only 15 % of the words are guessed: the largest product of all is done for these alone.
        x = self.norm(x).gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return self.head(self.transformed(F.gelu(self.transform(x))))


class Masked(data.Windows):
    """Pieces of the text with 15 % of the words hidden, others each time."""

    def __getitem__(self, index):
        words = super().__getitem__(index)
        # Always the same number of places: one shape, one compiled program, one CUDA graph.
        places = torch.randperm(self.length)[: round(0.15 * self.length)]
        # The mask is not seen in use, so a fifth go without: half as they are, half wrong.
        kind, wrong = torch.rand(len(places)), words[torch.randint(self.length, (len(places),))]
        shown = torch.where(kind < 0.8, data.MASK, torch.where(kind < 0.9, words[places], wrong))
        tokens = words.scatter(0, places, shown)
        return {"tokens": tokens, "places": places, "words": words[places]}


def loss_fn(model, batch):
    logits = model(batch["tokens"], batch["places"])
    return F.cross_entropy(logits.flatten(0, 1), batch["words"].flatten())


@torch.no_grad()
def hit_rate(model, loader):
    model.eval()
    hits = [model(b["tokens"], b["places"]).argmax(-1) == b["words"] for b in loader]
    return torch.cat(hits).float().mean().item()


def train(config, out, small):
    torch.manual_seed(0)
    _, train_text, test_text = data.text(config.vocabulary, small)
    # Worker processes mask ahead of the model, each batch under a seed of its own.
    loader = flatout.loader(
        Masked(train_text, config.context), config.batch, shuffle=True, drop_last=True
    )
    test = flatout.loader(Masked(test_text, config.context), config.batch)
    # The model goes to the device before the optimizer is built, which keeps its parameters.
    model = Bert(config).to(flatout.device())
    optimizer = torch.optim.AdamW(model.parameters(), config.rate, (0.9, 0.98), weight_decay=0.01)
    # Warm-up in the first twentieth, then a cosine.
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.rate, total_steps=config.steps, pct_start=0.05, cycle_momentum=False
    )
    # Precision, compilation and CUDA graph are chosen for this machine.
    step = flatout.train_step(model, loss_fn, optimizer, scheduler=scheduler, clip_norm=1.0)
    # Stopped (by SIGTERM too) and started again, it goes on with the very batch that is next.
    with flatout.Checkpoint(out, every="10m", step=step, loader=loader) as checkpoint:
        checkpoint.resume()
        while checkpoint.steps < config.steps:
            for batch in loader:  # each pass is one epoch
                loss = step(batch)
                checkpoint.after_step()
                if checkpoint.steps % 50 == 0:  # .item() waits for the device: not in every step
                    print(f"step {checkpoint.steps} loss {loss.item():.4f}", flush=True)
                if checkpoint.steps == config.steps:
                    break
        checkpoint.save()
    return hit_rate(model, test)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a size for two CPU cores")
    parser.add_argument("--out", type=Path, default=Path("bert_large"), help="for checkpoints")
    args = parser.parse_args()
    accuracy = train(SMALL if args.small else Config(), args.out, args.small)
    print(f"accuracy on hidden words {accuracy:.4f}")
