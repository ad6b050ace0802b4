"""Spell numbers out: "4071" -> "four thousand seventy one". GRU encoder-decoder with attention."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, BOS, EOS = 0, 1, 2
ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ONES += ["eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"]
ONES += ["eighteen", "nineteen"]
TENS = ["_", "_", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
WORDS = [*ONES, *TENS[2:], "hundred", "thousand", "million"]
WORD_ID = {w: i + 3 for i, w in enumerate(WORDS)}


def spell(n):
    if n < 20:
        return [ONES[n]]
    if n < 100:
        return [TENS[n // 10]] + ([ONES[n % 10]] if n % 10 else [])
    for size, name in ((1_000_000, "million"), (1000, "thousand"), (100, "hundred")):
        if n >= size:
            return spell(n // size) + [name] + (spell(n % size) if n % size else [])
    return []


class Numbers(Dataset):
    def __init__(self, count=20000):
        rng = random.Random(2)
        self.numbers = [rng.randrange(10 ** rng.randint(1, 9)) for _ in range(count)]

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, i):
        n = self.numbers[i]
        source = torch.tensor([int(c) + 3 for c in str(n)])
        target = torch.tensor([BOS] + [WORD_ID[w] for w in spell(n)] + [EOS])
        return source, target


def collate(pairs):
    pairs.sort(key=lambda pair: len(pair[0]), reverse=True)
    sources, targets = zip(*pairs, strict=True)
    lengths = torch.tensor([len(s) for s in sources])
    return pad_sequence(sources), lengths, pad_sequence(targets)


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(13, dim, padding_idx=PAD)
        self.gru = nn.GRU(dim, dim, bidirectional=True)
        self.bridge = nn.Linear(2 * dim, dim)

    def forward(self, source, lengths):
        packed = pack_padded_sequence(self.embed(source), lengths)
        outputs, hidden = self.gru(packed)
        outputs, _ = pad_packed_sequence(outputs)
        return self.bridge(outputs), torch.tanh(self.bridge(torch.cat([hidden[0], hidden[1]], 1)))


class Decoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(len(WORDS) + 3, dim, padding_idx=PAD)
        self.cell = nn.GRUCell(2 * dim, dim)
        self.out = nn.Linear(2 * dim, len(WORDS) + 3)

    def forward(self, token, hidden, memory, mask):
        scores = (memory * hidden).sum(-1).masked_fill(mask, -1e9)
        context = (scores.softmax(0).unsqueeze(-1) * memory).sum(0)
        hidden = self.cell(torch.cat([self.embed(token), context], -1), hidden)
        return self.out(torch.cat([hidden, context], -1)), hidden


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    encoder, decoder = Encoder(96), Decoder(96)
    parameters = list(encoder.parameters()) + list(decoder.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")
    loader = DataLoader(Numbers(), 64, shuffle=True, collate_fn=collate)
    step = 0
    while step < args.steps:
        for source, lengths, target in loader:
            memory, hidden = encoder(source, lengths)
            mask = source == PAD
            loss = 0
            for t in range(len(target) - 1):
                logits, hidden = decoder(target[t], hidden, memory, mask)
                loss = loss + criterion(logits, target[t + 1])
            loss = loss / (target[1:] != PAD).sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            step += 1
            if step <= 100 or step % 5 == 0:
                print(f"step {step} loss {loss.item():.8f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
