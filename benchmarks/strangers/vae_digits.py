import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="VAE on digits")
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--steps", type=int, default=30000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--log-interval", type=int, default=14)
args = parser.parse_args()

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)


class Digits(Dataset):
    def __init__(self, train=True):
        images, labels = load_digits(return_X_y=True)
        cut = 1500
        self.images = images[:cut] if train else images[cut:]
        self.labels = labels[:cut] if train else labels[cut:]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i] / 16.0).float(), int(self.labels[i])


train_loader = DataLoader(Digits(True), batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(Digits(False), batch_size=args.batch_size, shuffle=False)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 400)
        self.fc21 = nn.Linear(400, 20)
        self.fc22 = nn.Linear(400, 20)
        self.fc3 = nn.Linear(20, 400)
        self.fc4 = nn.Linear(400, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (bce + kld) / len(x)


model = VAE()
optimizer = optim.Adam(model.parameters(), lr=1e-3)
global_step = 0


def train(epoch):
    global global_step
    model.train()
    train_loss = 0
    for data, _ in train_loader:
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        global_step += 1
        if global_step <= 100 or global_step % args.log_interval == 0:
            print(f"step {global_step} loss {loss.item():.6f}")
        if global_step >= args.steps:
            return
    if epoch % 50 == 0:
        print(f"====> Epoch: {epoch} Average loss: {train_loss / len(train_loader):.4f}")


def test(epoch):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for data, _ in test_loader:
            recon_batch, mu, logvar = model(data)
            test_loss += loss_function(recon_batch, data, mu, logvar).item()
    if epoch % 50 == 0:
        print(f"====> Test set loss: {test_loss / len(test_loader):.4f}")


if __name__ == "__main__":
    epoch = 1
    while global_step < args.steps:
        train(epoch)
        test(epoch)
        epoch += 1
