# variational RNN (Chung et al. 2015) on multichannel sensor data, tuned for CPU
#
# * only what is really recurrent (encoder on h, sampling, phi_z, GRU) stays in the time loop; phi_x, its share of the
#   encoder and of the GRU input are one product before the loop; prior, decoder, KL and NLL one product after it
# * the loop is an autograd.Function with hand written backward: h @ [W_enc_h, W_hh] is one product, no autograd graph of
#   80 * 60 nodes, and the weight gradients are ONE product over (T * batch) rows instead of one per time step
# * those big products in bfloat16 (the recurrence itself and the output layers stay float32)
# * fused Adam, foreach clipping, no .item() per step

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
LOW = torch.bfloat16         # for the big products outside the time loop; None: everything in float32

# ---------------------------------------------------------------- data
def make_series(n, T, rng):
    """n recordings; latent oscillators switching between two regimes, mixed into x_dim channels"""
    mix = np.random.RandomState(0).randn(4, x_dim) / 2.0
    data = np.zeros((n, T, x_dim), dtype=np.float32)
    t = np.arange(T)
    for i in range(n):
        freq = rng.uniform(0.02, 0.12, size=4)
        phase = rng.uniform(0, 2 * np.pi, size=4)
        amp = rng.uniform(0.5, 1.5, size=4)
        s = amp * np.sin(2 * np.pi * freq * t[:, None] + phase)
        switch = rng.randint(T)
        s[switch:] = s[switch:] * rng.choice([-1, 1], size=4)
        data[i] = s @ mix + 0.1 * rng.randn(T, x_dim)
    return data

# ---------------------------------------------------------------- model
class VRNNLoop(torch.autograd.Function):
    """both, eps, weights -> h before every step, phi_z, encoder mean and std before softplus, encoder std

    both = phi_x's part of [GRU n, GRU r, GRU u, first encoder layer], biases included.  This column order makes the
    gradient of `both`, of the GRU input and of the product with h overlapping slices of one buffer:
    [dn, dr, du, de, r * dn]
    """

    @staticmethod
    def forward(ctx, both, eps, w_h, b_hn, w_e2, b_e2, w_ms, b_ms, w_z, b_z, w_iz):
        # w_h: rows [r, u, e, n] x H, w_iz: rows [n, r, u] x H
        T, B, _ = both.shape
        H, Z = w_h.shape[1], eps.shape[2]
        w_ht, w_e2t, w_mst, w_zt, w_izt = (w.t().contiguous() for w in (w_h, w_e2, w_ms, w_z, w_iz))
        new = both.new_empty
        hs = new(T + 1, B, H)
        hs[0] = 0
        e1, e2, ms, z, std = new(T, B, H), new(T, B, H), new(T, B, 2 * Z), new(T, B, Z), new(T, B, Z)
        pz, rz, n, hn = new(T, B, H), new(T, B, 2 * H), new(T, B, H), new(T, B, H)
        hh, gi = new(B, 4 * H), new(B, 3 * H)
        hh_ru, hh_e, hh_n = hh.split([2 * H, H, H], 1)
        gi_n, gi_ru = gi.split([H, 2 * H], 1)
        softplus = torch._C._nn.softplus
        h = hs[0]
        for (gx_t, ex_t, eps_t, h1_t, e1_t, e2_t, ms_t, m_t, s_t, std_t, z_t, pz_t, rz_t, r_t, u_t, n_t, hn_t) in zip(
                *(a.unbind(0) for a in (both[:, :, :3 * H], both[:, :, 3 * H:], eps, hs[1:], e1, e2, ms, ms[:, :, :Z],
                                        ms[:, :, Z:], std, z, pz, rz, rz[:, :, :H], rz[:, :, H:], n, hn))):
            torch.mm(h, w_ht, out=hh)
            torch.add(ex_t, hh_e, out=e1_t).relu_()
            torch.addmm(b_e2, e1_t, w_e2t, out=e2_t).relu_()
            torch.addmm(b_ms, e2_t, w_mst, out=ms_t)
            softplus(s_t, out=std_t)
            torch.addcmul(m_t, std_t, eps_t, out=z_t)
            torch.addmm(b_z, z_t, w_zt, out=pz_t).relu_()
            torch.addmm(gx_t, pz_t, w_izt, out=gi)
            torch.add(gi_ru, hh_ru, out=rz_t).sigmoid_()
            torch.add(hh_n, b_hn, out=hn_t)
            torch.addcmul(gi_n, r_t, hn_t, out=n_t).tanh_()
            torch.lerp(n_t, h, u_t, out=h1_t)                          # (1 - u) n + u h
            h = h1_t
        ctx.save_for_backward(eps, w_h, w_e2, w_ms, w_z, w_iz, hs, e1, e2, ms, z, pz, rz, n, hn)
        return hs[:T], pz, ms, std

    @staticmethod
    def backward(ctx, d_hs, d_pz, d_ms, d_std):
        eps, w_h, w_e2, w_ms, w_z, w_iz, hs, e1, e2, ms, z, pz, rz, n, hn = ctx.saved_tensors
        T, B, H = e1.shape
        Z = eps.shape[2]
        # everything that does not depend on the recurrent gradient is done for all t at once
        r, u = rz[:, :, :H], rz[:, :, H:]
        h0 = hs[:T]
        k_n = (1 - u) * (1 - n * n)                                    # dh' -> d(n before tanh)
        k_r = hn * r * (1 - r)
        k_u = (h0 - n) * u * (1 - u)
        tb = torch.ops.aten.threshold_backward
        # z = mean + eps * softplus(s): dz -> (dmean, ds)
        k_s = torch.sigmoid(ms[:, :, Z:])
        d_m = d_ms.clone()
        d_m[:, :, Z:].addcmul_(d_std, k_s)
        k_s *= eps
        new = e1.new_empty
        big = new(T, B, 5 * H)                                         # dn, dr, du, de, r * dn
        d_p, d_e2 = new(T, B, H), new(T, B, H)
        dh = torch.zeros_like(e1[0])
        d_z, d_a = new(B, Z), new(B, H)
        views = [a.unbind(0) for a in (big[:, :, :H], big[:, :, H:2 * H], big[:, :, 2 * H:3 * H], big[:, :, 3 * H:4 * H],
                                       big[:, :, 4 * H:], big[:, :, :3 * H], big[:, :, H:], k_n, k_r, k_u, r, u, d_pz, pz, d_p,
                                       d_m, d_m[:, :, :Z], d_m[:, :, Z:], k_s, e2, d_e2, e1, d_hs)]
        for (dn, dr, du, de, rdn, gi, gh, kn_t, kr_t, ku_t, r_t, u_t, d_pz_t, pz_t, d_p_t,
             dm_t, dmean_t, ds_t, ks_t, e2_t, d_e2_t, e1_t, d_h_t) in zip(*(reversed(v) for v in views)):
            torch.mul(dh, kn_t, out=dn)
            torch.mul(dn, kr_t, out=dr)
            torch.mul(dh, ku_t, out=du)
            torch.mul(dn, r_t, out=rdn)
            tb.grad_input(torch.addmm(d_pz_t, gi, w_iz, out=d_a), pz_t, 0, grad_input=d_p_t)
            torch.mm(d_p_t, w_z, out=d_z)
            dmean_t.add_(d_z)
            ds_t.addcmul_(d_z, ks_t)
            tb.grad_input(torch.mm(dm_t, w_ms, out=d_a), e2_t, 0, grad_input=d_e2_t)
            tb.grad_input(torch.mm(d_e2_t, w_e2, out=d_a), e1_t, 0, grad_input=de)
            dh = torch.addmm(torch.addcmul(d_h_t, dh, u_t), gh, w_h)

        def outer(a, b):                    # sum over time and batch of a^T b
            a, b = a.reshape(T * B, -1), b.reshape(T * B, -1)
            if LOW is None:
                return a.t() @ b
            return (a.to(LOW).t() @ b.to(LOW)).float()

        bias = lambda a: a.sum((0, 1))
        return (big[:, :, :4 * H], None, outer(big[:, :, H:], h0), bias(big[:, :, 4 * H:]),
                outer(d_e2, e1), bias(d_e2), outer(d_m, e2), bias(d_m), outer(d_p, z), bias(d_p),
                outer(big[:, :, :3 * H], pz))


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

    def kld_gauss(self, m1, s1, m2, s2):
        kld = 2 * torch.log(s2 + 1e-5) - 2 * torch.log(s1 + 1e-5) + (s1 ** 2 + (m1 - m2) ** 2) / (s2 + 1e-5) ** 2 - 1
        return 0.5 * torch.sum(kld)

    def nll_gauss(self, m, s, x):
        s = s + 1e-3
        return torch.sum(torch.log(s) + 0.5 * np.log(2 * np.pi) + (x - m) ** 2 / (2 * s ** 2))

    def forward(self, x, eps=None):
        # x: (T, batch, x_dim)
        H, Z = self.h_dim, self.enc_mean.out_features
        if eps is None:
            eps = torch.randn(x.size(0), x.size(1), Z)
        enc0, enc2, rnn = self.enc[0], self.enc[2], self.rnn
        i_r, i_u, i_n = rnn.weight_ih.chunk(3)
        h_r, h_u, h_n = rnn.weight_hh.chunk(3)
        b_r, b_u, b_n = rnn.bias_ih.chunk(3)
        c_r, c_u, c_n = rnn.bias_hh.chunk(3)
        w_i = torch.cat([i_n, i_r, i_u])
        with torch.autocast('cpu', LOW, enabled=LOW is not None):
            # one product for both consumers of phi_x
            both = F.linear(self.phi_x(x), torch.cat([w_i[:, :H], enc0.weight[:, :H]]),
                            torch.cat([b_n, b_r + c_r, b_u + c_u, enc0.bias]))
        h, phi_z, ms, enc_std = VRNNLoop.apply(
            both.to(x.dtype), eps, torch.cat([h_r, h_u, enc0.weight[:, H:], h_n]), c_n, enc2.weight, enc2.bias,
            torch.cat([self.enc_mean.weight, self.enc_std[0].weight]), torch.cat([self.enc_mean.bias, self.enc_std[0].bias]),
            self.phi_z[0].weight, self.phi_z[0].bias, w_i[:, H:].contiguous())
        with torch.autocast('cpu', LOW, enabled=LOW is not None):
            h_low = h.to(LOW or h.dtype)
            prior = self.prior(h_low)
            dec = self.dec(torch.cat([phi_z.to(h_low.dtype), h_low], 2))
        prior, dec = prior.to(x.dtype), dec.to(x.dtype)
        kld = self.kld_gauss(ms[:, :, :Z], enc_std, self.prior_mean(prior), self.prior_std(prior))
        return kld, self.nll_gauss(self.dec_mean(dec), self.dec_std(dec), x)


def main():
    series = make_series(3000, T + 1, np.random.RandomState(1))
    mean, std = series.mean((0, 1)), series.std((0, 1))
    series = torch.tensor((series - mean) / std)

    model = VRNN(x_dim, h_dim, z_dim)
    params = list(model.parameters())
    optimizer = optim.Adam(params, lr=lr, fused=True)

    step = 0
    avg = torch.zeros(())
    while step < n_steps:
        perm = torch.randperm(len(series))
        for i in range(0, len(series) - batch_size + 1, batch_size):
            x = series[perm[i:i + batch_size]].transpose(0, 1).contiguous()
            kl_weight = min(1.0, 0.1 + step / 200)

            optimizer.zero_grad()
            kld, nll = model(x)
            loss = (kl_weight * kld + nll) / (x.size(0) * x.size(1))
            loss.backward()
            nn.utils.clip_grad_norm_(params, clip, foreach=True)
            optimizer.step()

            avg += loss.detach()
            step += 1
            if step % print_every == 0:
                print('step %d loss %.4f  (kld %.3f nll %.3f)' % (
                    step, avg.item() / print_every, kld.item() / x.size(0) / x.size(1),
                    nll.item() / x.size(0) / x.size(1)), flush=True)
                avg.zero_()
            if step >= n_steps:
                break


if __name__ == '__main__':
    main()
