"""A small training on texts, sound as it is, with the needless work that `--fault` names.

python needless_faults.py [--fault NAME[,NAME...]]
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

LONGEST, WORDS, WIDTH, BATCH, STEPS = 160, 500, 64, 16, 400


class Texts(Dataset):
    def __init__(self):
        torch.manual_seed(0)
        lengths = torch.randint(20, 60, (256,)).tolist()
        self.rows = [torch.randint(1, WORDS, (length,)) for length in lengths]

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, index):
        row = self.rows[index % 256]
        return row, int(row.sum()) % 2


def joined(samples, faults):
    rows = [row for row, _ in samples]
    ids = pad_sequence(rows, batch_first=True)
    if "padding" in faults:
        ids = F.pad(ids, (0, LONGEST - ids.shape[1]))  # fault: padding
    return ids, torch.tensor([label for _, label in samples])


def batches(faults):
    if "singles" not in faults:
        yield from DataLoader(Texts(), BATCH, collate_fn=lambda rows: joined(rows, faults))
        return
    samples = []
    for sample in DataLoader(Texts(), batch_size=1):  # fault: singles
        samples.append((sample[0][0], int(sample[1])))
        if len(samples) == BATCH:
            yield joined(samples, faults)
            samples = []


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.rows = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, ids):
        return self.rows(self.words(ids))


class Model(nn.Module):
    def __init__(self, faults):
        super().__init__()
        self.faults = faults
        self.encoder = Encoder()
        if "frozen" not in faults:
            self.encoder.requires_grad_(False)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids):
        blank = ids == 0
        x = self.encoder(ids)  # fault: frozen
        if "checkpoint" in self.faults:
            x = checkpoint(self.block, x, None, blank, use_reentrant=False)  # fault: checkpoint
        else:
            x = self.block(x, src_key_padding_mask=blank)
        x = x.masked_fill(blank.unsqueeze(-1), 0.0)
        return self.head(x.sum(1) / (~blank).sum(1, keepdim=True))


def train(faults):
    torch.manual_seed(0)
    model = Model(faults)
    trained = [*model.block.parameters(), *model.head.parameters()]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    for ids, labels in batches(faults):
        loss = F.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="", type=lambda text: text.split(","))
    train(parser.parse_args().fault)
