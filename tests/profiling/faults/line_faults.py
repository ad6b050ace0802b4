"""A small training on the CPU, sound as it is, with the faults that `--fault` names.

python line_faults.py [--fault NAME[,NAME...]] [--steps STEPS]

What is planted is known by the text of its line as much as by its time. Its line ends in a remark
with its name, by which the tests find it.
"""

import argparse
import logging
import random
from collections import defaultdict

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

USERS, ITEMS, OWNED, BATCH, WIDTH, CAPACITY = 40, 6000, 1500, 128, 64, 20_000
log = logging.getLogger("training")


class Negatives:
    """Items that a user does not have."""

    def __init__(self, searching):
        self.random = random.Random(0)
        drawn = random.Random(1)
        self.lists, self.sets = defaultdict(list), defaultdict(set)
        for user in range(USERS):
            for item in drawn.sample(range(ITEMS), OWNED):
                self.lists[user].append(item)
                self.sets[user].add(item)
        self.searching = searching

    def from_list(self, user):
        owned = self.lists[user]
        picked = []
        while len(picked) < 2:
            item = int(self.random.random() * ITEMS)
            if item not in owned:  # fault: search
                picked.append(item)
        return picked

    def from_set(self, user):
        owned = self.sets[user]
        picked = []
        while len(picked) < 2:
            item = int(self.random.random() * ITEMS)
            if item not in owned:
                picked.append(item)
        return picked

    def draw(self, users):
        pick = self.from_list if self.searching else self.from_set
        return torch.tensor([pick(user) for user in users])


class Memory:
    """The last rows that were seen."""

    def __init__(self, growing):
        self.rows = np.zeros((CAPACITY, WIDTH), dtype=np.float32)
        self.at = 0
        self.growing = growing

    def add(self, new):
        if self.growing:
            self.rows = np.concatenate([self.rows, new])[-CAPACITY:]  # fault: growing
        else:
            self.rows[(self.at + np.arange(len(new))) % CAPACITY] = new
            self.at = (self.at + len(new)) % CAPACITY


class Model(nn.Module):
    def __init__(self, formatting):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, 1))
        self.formatting = formatting

    def forward(self, ids):
        scores = self.layers(self.items(ids)).squeeze(-1)
        if self.formatting:
            log.debug(f"items {ids} scores {scores}")  # fault: text
        else:
            log.debug("items %s scores %s", ids, scores)
        return scores


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    faults = args.fault.split(",")
    torch.manual_seed(0)
    model = Model("text" in faults)
    negatives, memory = Negatives("search" in faults), Memory("growing" in faults)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    drawn = random.Random(2)
    for step in range(args.steps):
        users = [drawn.randrange(USERS) for _ in range(BATCH)]
        wanted = torch.tensor([drawn.choice(negatives.lists[user]) for user in users])
        ids = torch.cat([wanted[:, None], negatives.draw(users)], dim=1)
        scores = model(ids)
        loss = -F.logsigmoid(scores[:, :1] - scores[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.add(model.items.weight.detach()[wanted].numpy())
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
