"""Dueling double DQN on CartPole: hand-optimised version of dqn_cartpole.py.

Same random streams (exploration, replay sampling, initial weights, environment), network, Adam and step count.
  * environment in plain Python floats (numpy scalars are slow);
  * replay memory in preallocated tensors, a batch is one index_select; state and next state go through the policy
    net together;
  * the target net only changes every TARGET_UPDATE steps: its value of each stored next state is kept, not recomputed;
  * the four layers live in one flat parameter (fused Adam on one tensor), gradients written out by hand.
"""
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

SEED = 0
BATCH_SIZE = 128
GAMMA = 0.99
EPS_START = 1.0
EPS_END = 0.05
EPS_DECAY = 1500
LR = 5e-4
BUFFER = 10000
WARMUP = 500
TARGET_UPDATE = 250
TOTAL_STEPS = 8000
HIDDEN = 256

random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)


class CartPole:
    """Same dynamics as CartPole-v1."""

    def __init__(self, seed=0):
        self.rng = np.random.RandomState(seed)
        self.total_mass = 1.0 + 0.1
        self.length = 0.5
        self.polemass_length = 0.1 * self.length
        self.theta_limit = 12 * 2 * math.pi / 360

    def reset(self):
        self.state = tuple(self.rng.uniform(-0.05, 0.05, size=(4,)).tolist())
        self.t = 0
        return self.state

    def step(self, action):
        x, x_dot, theta, theta_dot = self.state
        force = 10.0 if action == 1 else -10.0
        costheta = math.cos(theta)
        sintheta = math.sin(theta)
        temp = (force + self.polemass_length * theta_dot ** 2 * sintheta) / self.total_mass
        thetaacc = (9.8 * sintheta - costheta * temp) / (
            self.length * (4.0 / 3.0 - 0.1 * costheta ** 2 / self.total_mass))
        xacc = temp - self.polemass_length * thetaacc * costheta / self.total_mass
        x = x + 0.02 * x_dot
        x_dot = x_dot + 0.02 * xacc
        theta = theta + 0.02 * theta_dot
        theta_dot = theta_dot + 0.02 * thetaacc
        self.state = (x, x_dot, theta, theta_dot)
        self.t += 1
        done = abs(x) > 2.4 or abs(theta) > self.theta_limit
        return self.state, 1.0, done, self.t >= 500


class DQN(nn.Module):
    def __init__(self, n_obs, n_actions, hidden=HIDDEN):
        super().__init__()
        self.layer1 = nn.Linear(n_obs, hidden)
        self.layer2 = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, n_actions)


NAMES = ["layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias",
         "value.weight", "advantage.weight", "value.bias", "advantage.bias"]
SIZES = [4 * HIDDEN, HIDDEN, HIDDEN * HIDDEN, HIDDEN, 3 * HIDDEN, 3]


def views(flat):
    """W1, b1, W2, b2, W_head (value row, then the advantage rows), b_head"""
    w1, b1, w2, b2, wh, bh = flat.split(SIZES)
    return w1.view(HIDDEN, 4), b1, w2.view(HIDDEN, HIDDEN), b2, wh.view(3, HIDDEN), bh


def sample_indices(n, k):
    """random.sample(range(n), k): same draws, less ceremony"""
    if n <= 1045:
        return random.sample(range(n), k)
    bits, getrandbits = n.bit_length(), random.getrandbits
    seen, out = set(), []
    while len(out) < k:
        j = getrandbits(bits)
        if j < n and j not in seen:
            seen.add(j)
            out.append(j)
    return out


@torch.no_grad()
def main():
    env = CartPole(SEED)
    policy_net = DQN(4, 2)
    DQN(4, 2)          # the original builds its target net here (same generator state afterwards)
    sd = policy_net.state_dict()
    flat = torch.cat([sd[k].flatten() for k in NAMES])
    flat.requires_grad_(True)
    flat.grad = torch.zeros_like(flat)
    optimizer = optim.Adam([flat], lr=LR, fused=True)
    params = flat.detach()
    grad = flat.grad
    W1, b1, W2, b2, Wh, bh = views(params)
    gW1, gb1, gW2, gb2, gWh, gbh = views(grad)
    W1t, W2t, Wht = W1.t(), W2.t(), Wh.t()
    target = params.clone()
    T1, tb1, T2, tb2, Th, tbh = views(target)
    T1t, T2t, Tht = T1.t(), T2.t(), Th.t()
    # q = value + advantage - mean(advantage) as a 3 -> 2 linear map of the head's output
    dueling = torch.tensor([[1.0, 1.0], [0.5, -0.5], [-0.5, 0.5]])
    dueling_t = dueling.t().contiguous()

    # numpy views of the same memory for the single-state forward passes
    nW1, nb1, nW2, nb2, nWh, nbh = (v.numpy() for v in (W1, b1, W2, b2, Wh, bh))
    nT1, ntb1, nT2, ntb2, nTh, ntbh = (v.numpy() for v in (T1, tb1, T2, tb2, Th, tbh))

    mem_s = torch.zeros(BUFFER, 2, 4)             # state, next state
    mem_a = torch.zeros(BUFFER, dtype=torch.int64)
    mem_r = torch.zeros(BUFFER)
    mem_g = torch.zeros(BUFFER)                   # gamma * (1 - done)
    mem_tq = torch.zeros(BUFFER, 2)               # target net's q of the next state
    np_s, np_a, np_r, np_g, np_tq = (m.numpy() for m in (mem_s, mem_a, mem_r, mem_g, mem_tq))
    size, head = 0, 0

    B = BATCH_SIZE
    idx = torch.zeros(B, dtype=torch.int64)
    np_idx = idx.numpy()
    h1 = torch.empty(2 * B, HIDDEN)
    h2 = torch.empty(2 * B, HIDDEN)
    h1s, h2s = h1.view(B, 2, HIDDEN)[:, 0], h2.view(B, 2, HIDDEN)[:, 0]
    q_grad = torch.zeros(B, 2)
    d2 = torch.empty(B, HIDDEN)
    d1 = torch.empty(B, HIDDEN)

    state = env.reset()
    ep_return, returns, losses = 0.0, [], []
    for step in range(TOTAL_STEPS):
        eps = EPS_END + (EPS_START - EPS_END) * math.exp(-step / EPS_DECAY)
        if random.random() < eps:
            action = random.randrange(2)
        else:
            h = np.maximum(nW1 @ np.array(state, dtype=np.float32) + nb1, 0)
            h = np.maximum(nW2 @ h + nb2, 0)
            o = nWh @ h + nbh
            action = 1 if o[2] > o[1] else 0
        next_state, reward, done, truncated = env.step(action)
        if size < BUFFER:
            pos = size
            size += 1
        else:
            pos = head
            head = (head + 1) % BUFFER
        np_s[pos, 0] = state
        np_s[pos, 1] = next_state
        np_a[pos] = action
        np_r[pos] = reward
        np_g[pos] = 0.0 if done else GAMMA
        h = np.maximum(nT1 @ np_s[pos, 1] + ntb1, 0)
        h = np.maximum(nT2 @ h + ntb2, 0)
        v, a0, a1 = (nTh @ h + ntbh).tolist()
        m = 0.5 * (a0 + a1)
        np_tq[pos, 0] = v + a0 - m
        np_tq[pos, 1] = v + a1 - m
        ep_return += reward
        state = next_state
        if done or truncated:
            returns.append(ep_return)
            ep_return = 0.0
            state = env.reset()

        if size >= WARMUP:
            chosen = sample_indices(size, B)
            np_idx[:] = chosen
            if head:
                np_idx += head
                np_idx %= BUFFER
            x = mem_s.index_select(0, idx).view(2 * B, 4)
            torch.addmm(b1, x, W1t, out=h1).relu_()
            torch.addmm(b2, h1, W2t, out=h2).relu_()
            q2 = torch.mm(torch.addmm(bh, h2, Wht), dueling).view(B, 2, 2)
            a = mem_a.index_select(0, idx).unsqueeze(1)
            best = q2[:, 1].argmax(1, keepdim=True)
            tq = mem_tq.index_select(0, idx).gather(1, best).squeeze(1)
            y = torch.addcmul(mem_r.index_select(0, idx), mem_g.index_select(0, idx), tq)
            q = q2[:, 0].gather(1, a).squeeze(1)
            losses.append(F.smooth_l1_loss(q, y).item())
            # backward
            dq = q.sub_(y).clamp_(-1, 1).div_(B)
            d_out = torch.mm(q_grad.zero_().scatter_(1, a, dq.unsqueeze(1)), dueling_t)
            torch.sum(d_out, 0, out=gbh)
            torch.mm(d_out.t(), h2s, out=gWh)
            torch.mm(d_out, Wh, out=d2)
            d2.mul_(h2s > 0)
            torch.sum(d2, 0, out=gb2)
            torch.mm(d2.t(), h1s, out=gW2)
            torch.mm(d2, W2, out=d1)
            d1.mul_(h1s > 0)
            torch.sum(d1, 0, out=gb1)
            torch.mm(d1.t(), x.view(B, 8)[:, :4], out=gW1)
            grad.clamp_(-1.0, 1.0)
            optimizer.step()
            if step % TARGET_UPDATE == 0:
                target.copy_(params)
                s2 = mem_s[:size, 1]
                o = torch.addmm(tbh, torch.addmm(tb2, torch.addmm(tb1, s2, T1t).relu_(), T2t).relu_(), Tht)
                torch.mm(o, dueling, out=mem_tq[:size])

        if (step + 1) % 500 == 0:
            recent = returns[-10:]
            avg_loss = sum(losses[-500:]) / max(1, len(losses[-500:]))
            print(f"step {step + 1:6d}  episodes {len(returns):4d}  "
                  f"return(10) {sum(recent) / max(1, len(recent)):6.1f}  loss {avg_loss:.5f}")
    w1, b1_, w2, b2_, wh, bh_ = (v.clone() for v in views(params))
    torch.save({"layer1.weight": w1, "layer1.bias": b1_, "layer2.weight": w2, "layer2.bias": b2_,
                "value.weight": wh[:1], "value.bias": bh_[:1],
                "advantage.weight": wh[1:], "advantage.bias": bh_[1:]}, "dqn_cartpole.pt")


if __name__ == "__main__":
    main()
