"""Deep clustering: the assignments of k-means serve as labels."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from torch import nn


class Encoder(nn.Module):
    def __init__(self, hidden=640, code=16):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Linear(64, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, code),
        )
        self.dec = nn.Sequential(
            nn.Linear(code, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 64),
        )

    def forward(self, x):
        z = self.enc(x)
        return z, self.dec(z)


class DeepCluster:
    def __init__(self, k=10, seed=0):
        torch.manual_seed(seed)
        self.k = k
        self.x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
        self.net = Encoder()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        with torch.no_grad():
            self.memory = self.net.enc(self.x)

    def centres(self):
        km = KMeans(n_clusters=self.k, n_init=4, max_iter=50, random_state=0)
        km.fit(self.memory.numpy())
        return torch.from_numpy(km.cluster_centers_.astype(np.float32))

    def step(self, pick):
        z, back = self.net(self.x[pick])
        centres = self.centres()
        q = (1 + torch.cdist(z, centres) ** 2).reciprocal()
        q = q / q.sum(1, keepdim=True)
        p = (q**2 / q.sum(0)).detach()
        p = p / p.sum(1, keepdim=True)
        loss = F.mse_loss(back, self.x[pick]) + 0.1 * F.kl_div(q.log(), p, reduction="batchmean")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.memory[pick] = z.detach()
        return loss

    def fit(self, epochs=14, batch=320):
        for epoch in range(epochs):
            order = torch.randperm(len(self.x))
            for part in order.split(batch)[:-1]:
                loss = self.step(part)
            print(epoch, loss.item())


DeepCluster().fit()
