"""Sequence lengths vary by batch: each batch is padded to its longest sequence."""

import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    """Sequences of 4 to 96 tokens; the label is which of two tokens is there more often."""

    def __init__(self, count=512):
        generator = torch.Generator().manual_seed(1)
        lengths = torch.randint(4, 97, (count,), generator=generator).tolist()
        self.items = [torch.randint(1, 32, (n,), generator=generator) for n in lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        tokens = self.items[index]
        return tokens, int((tokens < 16).sum() > (tokens >= 16).sum())


def collate(items):
    tokens = pad_sequence([tokens for tokens, _ in items], batch_first=True)
    return tokens, torch.tensor([label for _, label in items])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 64, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 2)

    def forward(self, tokens):
        padding = tokens == 0
        x = self.layer(self.embedding(tokens), src_key_padding_mask=padding)
        return self.head(x.masked_fill(padding[:, :, None], 0).sum(dim=1) / 32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Sequences(), batch_size=8, shuffle=True, collate_fn=collate)

    step = 0
    while step < args.steps:
        for tokens, labels in loader:
            loss = nn.functional.cross_entropy(model(tokens.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print("step", step, "loss", repr(loss.item()))
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
