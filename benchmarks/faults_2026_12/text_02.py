import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

MAX_LEN = 160
VOCAB = 3000


class Reviews(Dataset):
    """Synthetic reviews; good ones use the upper half of the words more often."""

    def __init__(self, n=4000, seed=0):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            length = min(MAX_LEN, max(8, int(rng.lognormvariate(3.4, 0.35))))
            good = rng.random() < 0.5
            low, high = (VOCAB // 2, VOCAB) if good else (1, VOCAB // 2)
            words = [
                rng.randrange(low, high) if rng.random() < 0.6 else rng.randrange(1, VOCAB)
                for _ in range(length)
            ]
            self.rows.append((torch.tensor(words), int(good)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = torch.zeros(len(rows), MAX_LEN, dtype=torch.long)
    for k, (words, _) in enumerate(rows):
        ids[k, : len(words)] = words
    return ids, torch.tensor([label for _, label in rows])


class Classifier(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.pos = nn.Embedding(MAX_LEN, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 192, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 2)

    def forward(self, ids):
        blank = ids == 0
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1]))
        x = self.encoder(x, src_key_padding_mask=blank)
        x = x.masked_fill(blank.unsqueeze(-1), 0).sum(1) / (~blank).sum(1, keepdim=True)
        return self.out(x)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Reviews(), batch_size=16, shuffle=True, collate_fn=collate)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, (ids, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(ids), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
