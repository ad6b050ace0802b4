"""Deep Q-learning on a tensor replay memory with transitions made in advance."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Memory:
    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.s = torch.randn(n, 12, generator=g)
        self.a = torch.randint(0, 6, (n, 1), generator=g)
        self.s2 = 0.9 * self.s + 0.2 * torch.randn(n, 12, generator=g)
        self.r = -self.s2.pow(2).mean(1, keepdim=True) + 0.1 * self.a
        self.done = (torch.rand(n, 1, generator=g) < 0.02).float()

    def sample(self, k):
        i = torch.randint(0, len(self.s), (k,))
        return self.s[i], self.a[i], self.r[i], self.s2[i], self.done[i]


def network():
    return nn.Sequential(
        nn.Linear(12, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 6)
    )


def soft_update(target, online, tau):
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)


def main():
    torch.manual_seed(0)
    memory = Memory(50_000)
    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=3e-4)
    for update in range(121):
        s, a, r, s2, done = memory.sample(768)
        with torch.no_grad():
            y = r + 0.99 * (1 - done) * target(s2).amax(1, keepdim=True)
        loss = F.smooth_l1_loss(online(s).gather(1, a), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        soft_update(target, online, 0.01)
        if update % 40 == 0:
            print(f"update {update} td loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
