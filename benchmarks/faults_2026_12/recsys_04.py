import torch
import torch.nn as nn
import torch.nn.functional as F


class SessionModel(nn.Module):
    """Next item of a session from the last ones, GRU4Rec like."""

    def __init__(self, items=1500, dim=64):
        super().__init__()
        self.items = items
        self.inp = nn.Linear(items, dim, bias=False)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, items)

    def forward(self, session):
        x = F.one_hot(session, self.items).float()
        h, _ = self.gru(self.inp(x))
        return self.out(h[:, -1])


class Sessions:
    def __init__(self, items=1500, length=16, batch=96, seed=0):
        self.items, self.length, self.batch = items, length, batch
        self.g = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            start = torch.randint(0, self.items, (self.batch, 1), generator=self.g)
            jump = torch.randint(1, 5, (self.batch, self.length + 1), generator=self.g).cumsum(1)
            s = (start + jump) % self.items
            yield s[:, :-1], s[:, -1]


def main(steps=150):
    torch.manual_seed(0)
    model = SessionModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step, (session, nxt) in zip(range(steps), Sessions()):
        loss = F.cross_entropy(model(session), nxt)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"{step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
