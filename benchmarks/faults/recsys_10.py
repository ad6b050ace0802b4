import torch
import torch.nn as nn
import torch.nn.functional as F

USERS, ITEMS, DIM = 20000, 3000, 64


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, DIM), nn.Embedding(ITEMS, DIM)
        self.f = nn.Sequential(nn.Linear(DIM, 256), nn.ReLU(), nn.Linear(256, DIM))
        self.g = nn.Sequential(nn.Linear(DIM, 256), nn.ReLU(), nn.Linear(256, DIM))

    def forward(self, u, i):
        return self.f(self.user(u)) @ self.g(self.item(i)).T


def main():
    torch.manual_seed(0)
    users = torch.randint(0, USERS, (120000,))
    items = (users * 13 + torch.randint(0, 40, (120000,))) % ITEMS
    model = TwoTower()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    target = torch.arange(1024)
    running = torch.zeros(())
    for n, pick in enumerate(torch.randperm(len(users)).split(1024)[:110]):
        scores = model(users[pick], items[pick])
        loss = F.cross_entropy(scores, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.detach()
        if n % 22 == 21:
            print(n + 1, (running / 22).item())
            running.zero_()


main()
