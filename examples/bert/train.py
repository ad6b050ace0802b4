"""Train a BERT to fill in masked words, on the source of Python's own standard library.

python train.py
python train.py --layers 24 --heads 16 --width 1024 --context 384 --batch-size 32
"""

import argparse
import json
import re
import sysconfig
import time
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).resolve().parent
PAD, UNKNOWN, MASK = 0, 1, 2
WORD = re.compile(r"[A-Za-z]+|\d|\s+|[^\sA-Za-z\d]")


def load_words():
    """The standard library's modules, cut into words, signs and white space."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    if not files:
        raise SystemExit("this Python's standard library is not there as source files")
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    return WORD.findall(text)


def load_vocabulary(words, folder, size):
    """Number the commonest words; kept in a file, so that a checkpoint stays readable."""
    path = folder / f"vocabulary-{size}.json"
    if not path.exists():
        common = Counter(words).most_common(size - 3)
        folder.mkdir(parents=True, exist_ok=True)
        with open(path, "w") as file:
            json.dump(["[PAD]", "[UNK]", "[MASK]", *(word for word, _ in common)], file)
    with open(path) as file:
        return {word: number for number, word in enumerate(json.load(file))}


class MaskedText(Dataset):
    """Pieces of `context` words, some of them masked anew each time."""

    def __init__(self, tokens, context, vocabulary):
        self.pieces = tokens[: len(tokens) // context * context].view(-1, context)
        self.vocabulary = vocabulary

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, index):
        labels = self.pieces[index].clone()
        inputs = labels.clone()
        chosen = torch.rand(len(labels)) < 0.15
        labels[~chosen] = -100  # no loss where the word can be seen
        change = torch.rand(len(labels))
        inputs[chosen & (change < 0.8)] = MASK
        other = chosen & (change >= 0.9)
        inputs[other] = torch.randint(3, self.vocabulary, (int(other.sum()),))
        return inputs, labels


class Bert(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, width, dropout):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        # Norms before the layers, unlike the first BERT: without that it needs a long warm-up.
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.decoder = nn.Linear(width, vocabulary)
        self.apply(self.init_weights)
        self.decoder.weight = self.words.weight

    def init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, inputs):
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.dropout(self.norm(self.words(inputs) + self.positions(positions)))
        return self.decoder(self.transform(self.encoder(x)))


def loss_and_hits(model, inputs, labels):
    logits = model(inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    hits = (logits.argmax(dim=-1) == labels).sum().item()
    return loss, hits / max(1, (labels != -100).sum().item())


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    results = [
        loss_and_hits(model, inputs.to(device), labels.to(device)) for inputs, labels in loader
    ]
    model.train()
    count = len(results)
    return sum(loss.item() for loss, _ in results) / count, sum(hit for _, hit in results) / count


def batches_forever(loader):
    while True:
        yield from loader


def train(model, optimizer, scheduler, loader, args, device):
    batches = batches_forever(loader)
    running_loss, running_hits, start = 0.0, 0.0, time.time()
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        for _ in range(args.accumulation):
            inputs, labels = next(batches)
            loss, hits = loss_and_hits(model, inputs.to(device), labels.to(device))
            (loss / args.accumulation).backward()
            running_loss += loss.item() / args.accumulation
            running_hits += hits / args.accumulation
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            speed = 100 * (time.time() - start)
            print(
                f"step {step} loss {running_loss / 10:.4f} "
                f"masked accuracy {running_hits / 10:.4f} {speed:.0f} ms/step",
                flush=True,
            )
            running_loss, running_hits, start = 0.0, 0.0, time.time()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=HERE / "data", help="folder of the vocabulary")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="folder for checkpoints")
    parser.add_argument("--vocabulary", type=int, default=4096, help="words to know")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulation", type=int, default=1, help="batches in each step")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load_data(args):
    words = load_words()
    numbers = load_vocabulary(words, args.data, args.vocabulary)
    tokens = torch.tensor([numbers.get(word, UNKNOWN) for word in words])
    split = len(tokens) * 9 // 10
    train_data = MaskedText(tokens[:split], args.context, args.vocabulary)
    test_data = MaskedText(tokens[split:][: 128 * args.context], args.context, args.vocabulary)
    train_loader = DataLoader(train_data, args.batch_size, shuffle=True, drop_last=True)
    return train_loader, DataLoader(test_data, args.batch_size)


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_loader, test_loader = load_data(args)
    model = Bert(
        args.vocabulary, args.context, args.layers, args.heads, args.width, args.dropout
    ).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps)

    train(model, optimizer, scheduler, train_loader, args, device)
    loss, accuracy = evaluate(model, test_loader, device)
    print(f"test loss {loss:.4f} masked accuracy {accuracy:.4f}")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.out / "bert.pt")


if __name__ == "__main__":
    main()
