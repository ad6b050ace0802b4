import random
import sqlite3

import torch
import torch.nn as nn
import torch.nn.functional as F

N_USERS, N_ITEMS, LEN = 3000, 1500, 30


def fill(con):
    rng = random.Random(0)
    con.execute("CREATE TABLE clicks (user INTEGER, pos INTEGER, item INTEGER, price REAL)")
    rows = []
    for u in range(N_USERS):
        item = rng.randrange(N_ITEMS)
        for pos in range(LEN):
            item = (item * 7 + rng.randrange(5)) % N_ITEMS
            rows.append((u, pos, item, rng.random()))
    con.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?)", rows)
    con.execute("CREATE INDEX by_user ON clicks (user)")
    con.commit()


def fetch(con, users):
    histories = []
    for u in users:
        cur = con.execute("SELECT item, price FROM clicks WHERE user = ? ORDER BY pos", (u,))
        histories.append(cur.fetchall())
    items = torch.tensor([[r[0] for r in h] for h in histories])
    price = torch.tensor([[r[1] for r in h] for h in histories])
    return items, price


class GRU4Rec(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.emb = nn.Embedding(N_ITEMS, dim)
        self.proj = nn.Linear(dim + 1, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(N_ITEMS))

    def forward(self, items, price):
        x = self.proj(torch.cat([self.emb(items), price.unsqueeze(-1)], -1))
        h, _ = self.gru(x)
        return h[:, -1] @ self.emb.weight.T + self.bias


def main():
    con = sqlite3.connect(":memory:")
    fill(con)
    torch.manual_seed(0)
    model = GRU4Rec()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(100):
        users = random.sample(range(N_USERS), 256)
        items, price = fetch(con, users)
        logits = model(items[:, :-1], price[:, :-1])
        loss = F.cross_entropy(logits, items[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not step % 25:
            print(step, loss.item())


if __name__ == "__main__":
    main()
