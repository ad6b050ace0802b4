"""A small training script for a CPU without a fault, or with those that --fault names.

Each line with a fault ends in a remark with its name, by which the tests find the line.
"""

import argparse
import logging
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW

WIDTH, HEADS, LENGTH, BATCH = 128, 4, 64, 16


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def sdpa_with_dropout(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)  # fault: math-attention


def attention_by_hand(q, k, v):
    scores = q @ k.transpose(-2, -1) / 8
    weights = scores.softmax(-1)  # fault: attention
    return weights @ v


def norm(x, weight):
    return F.layer_norm(x, (WIDTH,), weight)


def norm_by_hand(x, weight):
    x = x - x.mean(-1, keepdim=True)
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))  # fault: norm


def as_it_is(x):
    return x


def copied(x):
    for _ in range(12):
        x = x.transpose(1, 2).contiguous()  # fault: copies
    return x


class Block(nn.Module):
    def __init__(self, attention, norm, between):
        super().__init__()
        self.attention, self.norm, self.between = attention, norm, between
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.qkv(self.norm(x, self.weight)).split(WIDTH, dim=2)
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        y = self.attention(q, k, v).transpose(1, 2).reshape(batch, length, WIDTH)
        x = self.between(x + self.out(y))
        return x + self.down(F.relu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, attention=sdpa, norm=norm, between=as_it_is, words=1):
        super().__init__()
        self.words = nn.Parameter(torch.zeros(words, WIDTH))
        self.blocks = nn.Sequential(*(Block(attention, norm, between) for _ in range(2)))
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, x):
        return self.head(self.blocks(x + self.words[0])).mean(1)


class Broken(Transformer):
    def forward(self, x):
        x = self.blocks(x)
        torch._dynamo.graph_break()  # fault: graph-break
        return self.head(x).mean(1)


class Scaled(Transformer):
    scale = 1.0

    def forward(self, x):
        return self.head(self.blocks(x)).mean(1) * self.scale  # fault: recompiles


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        layers = (nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU())
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(64, 16)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


def backward(loss):
    loss.backward()


def backward_keeping(loss):
    loss.backward(retain_graph=True)  # fault: retain-graph


def zero(optimizer):
    optimizer.zero_grad()


def zero_in_place(optimizer):
    optimizer.zero_grad(set_to_none=False)  # fault: zeros


def evaluate(model, batch):
    model.eval()
    with torch.no_grad():
        for step in range(4):
            model(batch(step)[0])
    model.train()


def evaluate_with_gradients(model, batch):
    model.eval()
    for step in range(4):
        model(batch(step)[0])  # fault: eval-grad
    model.train()


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--half", action="store_true", help="bfloat16 is native on this CPU")
    args = parser.parse_args()
    return args, set(args.fault)


def prepare(faults):
    """What scripts set before they begin."""
    if "anomaly" in faults:
        torch.autograd.set_detect_anomaly(True)  # fault: anomaly
    if "deterministic" in faults:
        torch.use_deterministic_algorithms(True)


def build(faults):
    """Model, optimizer, and how to make a batch."""
    if "channels-first" in faults:
        model, shape = Convolutions(), (BATCH, 3, 40, 40)
    else:
        kind = (
            Broken if "graph-break" in faults else Scaled if "recompiles" in faults else Transformer
        )
        attention = sdpa_with_dropout if "math-attention" in faults else sdpa
        attention = attention_by_hand if "attention" in faults else attention
        between = copied if "copies" in faults else as_it_is
        normalised = norm_by_hand if "norm" in faults else norm
        model = kind(attention, normalised, between, 20_000 if "unfused" in faults else 1)
        shape = (BATCH, 4 * LENGTH if "attention" in faults else LENGTH, WIDTH)
    if "float64" in faults:
        model = model.double()
    if faults & {"graph-break", "recompiles", "shapes"}:
        model = torch.compile(model, dynamic=False, backend="aot_eager")
    dtype = next(model.parameters()).dtype

    def batch(step):
        rows = BATCH + step % 7 if "shapes" in faults else BATCH
        return torch.randn(rows, *shape[1:], dtype=dtype), torch.randint(16, (rows,))

    fused = None if "unfused" in faults else True
    return model, AdamW(model.parameters(), lr=1e-4, fused=fused), batch


def train(args, faults, folder):
    torch.manual_seed(0)
    model, optimizer, batch = build(faults)
    go_back = backward_keeping if "retain-graph" in faults else backward
    drop = zero_in_place if "zeros" in faults else zero
    assess = evaluate_with_gradients if "eval-grad" in faults else evaluate
    log = logging.getLogger("train")
    log.addHandler(logging.StreamHandler())
    history = []
    for step in range(args.steps):
        x, y = batch(step)
        if "model-rebuilt" in faults:
            Transformer()  # fault: model-rebuilt
        if "optimizer-rebuilt" in faults:
            optimizer = AdamW(model.parameters(), fused=True)  # fault: optimizer-rebuilt
        if "recompiles" in faults:
            model._orig_mod.scale = 1.0 + step / 1000
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.half):
            output = model(x)  # fault: float32, shapes, channels-first
            if "forward-unused" in faults:
                model(x)  # fault: forward-unused
        loss = F.cross_entropy(output.float() if args.half else output, y)
        if "losses-kept" in faults:
            history.append(loss)  # fault: losses-kept
        go_back(loss)
        if "twice" in faults:
            loss.backward()
        optimizer.step()  # fault: unfused, never-zeroed
        if "never-zeroed" not in faults:
            drop(optimizer)
        if "checkpoint" in faults:
            torch.save(model.state_dict(), os.path.join(folder, "last.pt"))  # fault: checkpoint
        if "logging" in faults:
            log.warning("%s", [value.tolist() for value in model.parameters()])  # fault: logging
        if faults & {"eval-grad", "eval-often"} and step % 2 == 0:
            assess(model, batch)  # fault: eval-often


if __name__ == "__main__":
    arguments, wanted = parse()
    prepare(wanted)
    with tempfile.TemporaryDirectory() as scratch:
        train(arguments, wanted, scratch)
