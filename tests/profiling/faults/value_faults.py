"""A small language model on the CPU, sound as it is, with the faults of values that are named.

python value_faults.py [--fault NAME[,NAME...]]
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

USERS, ITEMS, WORDS, WIDTH, STEPS = 30_000, 1200, 2000, 48, 400


class Model(nn.Module):
    def __init__(self, faults):
        super().__init__()
        self.users = nn.Embedding(USERS if "embedding" in faults else 500, WIDTH)
        self.items = nn.Linear(ITEMS, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, user, item):
        return torch.relu(self.users(user) + F.embedding(item, self.items.weight.t()))


def train(faults):
    torch.manual_seed(0)
    model = Model(faults)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        user = torch.randint(0, model.users.num_embeddings, (32, 1)).expand(32, 16)
        item = torch.randint(0, ITEMS, (32, 16))
        target, counted = item % WORDS, torch.rand(32, 16) < 0.2
        hidden = model(user, item)
        if "ignored" in faults:
            logits = model.head(hidden)  # fault: ignored
            target = target.masked_fill(~counted, -100)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        else:
            loss = F.cross_entropy(model.head(hidden[counted]), target[counted])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # fault: embedding


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="", type=lambda text: text.split(","))
    train(parser.parse_args().fault)
