# variational RNN (Chung et al. 2015) on multichannel sensor data

import sys
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

torch.manual_seed(3)
np.random.seed(3)

# ---------------------------------------------------------------- settings
n_steps = 300
if '--steps' in sys.argv:
    n_steps = int(sys.argv[sys.argv.index('--steps') + 1])

x_dim = 12
h_dim = 128
z_dim = 16
T = 80
batch_size = 64
lr = 1e-3
clip = 5.0
print_every = 10

# ---------------------------------------------------------------- data
def make_series(n, T, rng):
    """n recordings; latent oscillators switching between two regimes, mixed into x_dim channels"""
    mix = np.random.RandomState(0).randn(4, x_dim) / 2.0
    data = np.zeros((n, T, x_dim), dtype=np.float32)
    for i in range(n):
        freq = rng.uniform(0.02, 0.12, size=4)
        phase = rng.uniform(0, 2 * np.pi, size=4)
        amp = rng.uniform(0.5, 1.5, size=4)
        t = np.arange(T)
        s = amp * np.sin(2 * np.pi * freq * t[:, None] + phase)
        switch = rng.randint(T)
        s[switch:] = s[switch:] * rng.choice([-1, 1], size=4)
        data[i] = s @ mix + 0.1 * rng.randn(T, x_dim)
    return data

series = make_series(3000, T + 1, np.random.RandomState(1))
mean, std = series.mean((0, 1)), series.std((0, 1))
series = torch.tensor((series - mean) / std)
dataset = torch.utils.data.TensorDataset(series)
loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)

# ---------------------------------------------------------------- model
class VRNN(nn.Module):
    def __init__(self, x_dim, h_dim, z_dim):
        super().__init__()
        self.h_dim = h_dim
        self.phi_x = nn.Sequential(nn.Linear(x_dim, h_dim), nn.ReLU(), nn.Linear(h_dim, h_dim), nn.ReLU())
        self.phi_z = nn.Sequential(nn.Linear(z_dim, h_dim), nn.ReLU())
        self.enc = nn.Sequential(nn.Linear(h_dim + h_dim, h_dim), nn.ReLU(), nn.Linear(h_dim, h_dim), nn.ReLU())
        self.enc_mean = nn.Linear(h_dim, z_dim)
        self.enc_std = nn.Sequential(nn.Linear(h_dim, z_dim), nn.Softplus())
        self.prior = nn.Sequential(nn.Linear(h_dim, h_dim), nn.ReLU())
        self.prior_mean = nn.Linear(h_dim, z_dim)
        self.prior_std = nn.Sequential(nn.Linear(h_dim, z_dim), nn.Softplus())
        self.dec = nn.Sequential(nn.Linear(h_dim + h_dim, h_dim), nn.ReLU(), nn.Linear(h_dim, h_dim), nn.ReLU())
        self.dec_mean = nn.Linear(h_dim, x_dim)
        self.dec_std = nn.Sequential(nn.Linear(h_dim, x_dim), nn.Softplus())
        self.rnn = nn.GRUCell(h_dim + h_dim, h_dim)

    def reparameterized_sample(self, mean, std):
        eps = torch.randn(std.size())
        return eps * std + mean

    def kld_gauss(self, m1, s1, m2, s2):
        kld = 2 * torch.log(s2 + 1e-5) - 2 * torch.log(s1 + 1e-5) + (s1 ** 2 + (m1 - m2) ** 2) / (s2 + 1e-5) ** 2 - 1
        return 0.5 * torch.sum(kld)

    def nll_gauss(self, m, s, x):
        s = s + 1e-3
        return torch.sum(torch.log(s) + 0.5 * np.log(2 * np.pi) + (x - m) ** 2 / (2 * s ** 2))

    def forward(self, x):
        # x: (T, batch, x_dim)
        kld_loss = 0
        nll_loss = 0
        h = torch.zeros(x.size(1), self.h_dim)

        for t in range(x.size(0)):
            phi_x_t = self.phi_x(x[t])

            # encoder
            enc_t = self.enc(torch.cat([phi_x_t, h], 1))
            enc_mean_t = self.enc_mean(enc_t)
            enc_std_t = self.enc_std(enc_t)

            # prior
            prior_t = self.prior(h)
            prior_mean_t = self.prior_mean(prior_t)
            prior_std_t = self.prior_std(prior_t)

            # sampling
            z_t = self.reparameterized_sample(enc_mean_t, enc_std_t)
            phi_z_t = self.phi_z(z_t)

            # decoder
            dec_t = self.dec(torch.cat([phi_z_t, h], 1))
            dec_mean_t = self.dec_mean(dec_t)
            dec_std_t = self.dec_std(dec_t)

            # recurrence, fed with the true x_t
            h = self.rnn(torch.cat([phi_x_t, phi_z_t], 1), h)

            kld_loss += self.kld_gauss(enc_mean_t, enc_std_t, prior_mean_t, prior_std_t)
            nll_loss += self.nll_gauss(dec_mean_t, dec_std_t, x[t])

        return kld_loss, nll_loss

model = VRNN(x_dim, h_dim, z_dim)
optimizer = optim.Adam(model.parameters(), lr=lr)

# ---------------------------------------------------------------- training
step = 0
done = False
avg = 0
while not done:
    for (batch,) in loader:
        x = batch.transpose(0, 1)
        kl_weight = min(1.0, 0.1 + step / 200)

        optimizer.zero_grad()
        kld, nll = model(x)
        loss = (kl_weight * kld + nll) / (x.size(0) * x.size(1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()

        avg += loss.item() / print_every
        step += 1
        if step % print_every == 0:
            print('step %d loss %.4f  (kld %.3f nll %.3f)' % (
                step, avg, kld.item() / x.size(0) / x.size(1), nll.item() / x.size(0) / x.size(1)), flush=True)
            avg = 0
        if step >= n_steps:
            done = True
            break
