"""Language identification on byte n-grams of the standard library, by package."""

import argparse
import json
import logging
import os
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

logger = logging.getLogger("packages")
PACKAGES = ("asyncio", "email", "unittest", "http", "json", "logging", "concurrent", "xml")


@dataclass
class Config:
    length: int = 128
    batch: int = 32
    steps: int = 80
    dim: int = 64
    hidden: int = 128
    lr: float = 2e-3
    weight_decay: float = 0.01
    warmup: int = 10
    temperature: float = 0.7
    seed: int = 0


class Documents:
    """Byte windows of all modules of the packages."""

    def __init__(self, root, length):
        self.length = length
        self.names, self.blobs, self.labels = [], [], []
        for label, package in enumerate(PACKAGES):
            for path in sorted((root / package).rglob("*.py")):
                blob = path.read_bytes()
                if len(blob) > length + 1:
                    self.names.append(str(path.relative_to(root)))
                    self.blobs.append(torch.tensor(list(blob)))
                    self.labels.append(label)

    def __len__(self):
        return len(self.blobs)

    def window(self, i):
        blob = self.blobs[i]
        start = random.randrange(len(blob) - self.length)
        return blob[start : start + self.length]


def write_stats(documents, path):
    """One record a document: size, label, its frequent words."""
    records = {}
    for name, blob, label in zip(documents.names, documents.blobs, documents.labels):
        words = bytes(blob.tolist()).decode(errors="ignore").split()
        records[name] = {
            "size": len(blob),
            "label": label,
            "lengths": [len(w) for w in words[:600]],
            "words": dict(Counter(words).most_common(400)),
        }
    path.write_text(json.dumps(records))


class Sampler:
    """Draws documents by the size of their class, smoothed by a temperature."""

    def __init__(self, documents, stats_path, temperature):
        self.documents = documents
        self.stats_path = stats_path
        self.temperature = temperature

    def load_stats(self):
        with open(self.stats_path) as f:
            return json.load(f)

    def weights(self):
        stats = self.load_stats()
        per_label = Counter()
        for record in stats.values():
            per_label[record["label"]] += record["size"]
        total = sum(per_label.values())
        weight = {k: (v / total) ** self.temperature / (v / total) for k, v in per_label.items()}
        return [weight[stats[n]["label"]] for n in self.documents.names]

    def batch(self, size):
        chosen = random.choices(range(len(self.documents)), self.weights(), k=size)
        x = torch.stack([self.documents.window(i) for i in chosen])
        y = torch.tensor([self.documents.labels[i] for i in chosen])
        return x, y


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, 2 * width, 5, padding=2)
        self.norm = nn.GroupNorm(1, width)

    def forward(self, x):
        a, b = self.conv(self.norm(x)).chunk(2, 1)
        return x + a * torch.sigmoid(b)


class Classifier(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(256, config.dim)
        self.gates = nn.Sequential(Gate(config.dim), Gate(config.dim))
        self.head = nn.Sequential(
            nn.Linear(2 * config.dim, config.hidden),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(config.hidden, len(PACKAGES)),
        )

    def forward(self, ids):
        h = self.gates(self.embed(ids).transpose(1, 2))
        return self.head(torch.cat([h.mean(-1), h.amax(-1)], 1))


class Meter:
    def __init__(self, momentum=0.9):
        self.momentum, self.values = momentum, {}

    def update(self, **values):
        for k, v in values.items():
            old = self.values.get(k, v)
            self.values[k] = self.momentum * old + (1 - self.momentum) * v

    def __str__(self):
        return " ".join(f"{k}={v:.4f}" for k, v in self.values.items())


class Trainer:
    def __init__(self, config, folder):
        self.config = config
        documents = Documents(Path(os.__file__).parent, config.length)
        stats = folder / "stats.json"
        write_stats(documents, stats)
        (folder / "config.json").write_text(json.dumps(asdict(config)))
        logger.info(
            "%d documents, statistics of %d kB", len(documents), stats.stat().st_size // 1024
        )
        self.sampler = Sampler(documents, stats, config.temperature)
        self.model = Classifier(config)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        self.meter = Meter()

    def rate(self, step):
        if step < self.config.warmup:
            return (step + 1) / self.config.warmup
        return max(0.1, 1 - (step - self.config.warmup) / self.config.steps)

    def step(self):
        x, y = self.sampler.batch(self.config.batch)
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.meter.update(loss=loss.item(), accuracy=(logits.argmax(1) == y).float().mean().item())

    def run(self):
        for n in range(1, self.config.steps + 1):
            self.step()
            if n % 20 == 0:
                logger.info("step %d/%d %s", n, self.config.steps, self.meter)


def parse_config():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in asdict(Config()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return Config(**vars(parser.parse_args()))


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    config = parse_config()
    random.seed(config.seed)
    torch.manual_seed(config.seed)
    folder = Path(tempfile.mkdtemp(prefix="packages-"))
    try:
        Trainer(config, folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
