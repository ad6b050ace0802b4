# PPO on a vectorised numpy environment, tuned: the networks are tiny, so everything is about the number of operations.
#  * rollout: only the actor's mean is needed step by step -> three small numpy products; noise is drawn once per rollout,
#    values and log-probabilities are computed for the whole rollout in one go
#  * GAE in numpy
#  * update: actor and critic stacked as one batched MLP, hand written gradient (~40 operations, no autograd),
#    all parameters and gradients are views of one flat buffer -> clipping and (fused) Adam are each one operation
#  * one gather of the rollout per epoch instead of six per minibatch, advantages normalised for all minibatches at once
import argparse
import time

import numpy as np
import torch
import torch.nn as nn


class VecReacher:
    """N independent point robots with drag that have to reach a moving target and stay there."""

    obs_dim = 10
    act_dim = 2

    def __init__(self, num_envs, max_steps=150, seed=0):
        self.n = num_envs
        self.max_steps = max_steps
        self.rng = np.random.default_rng(seed)
        self.pos = np.zeros((num_envs, 2))
        self.vel = np.zeros((num_envs, 2))
        self.target = np.zeros((num_envs, 2))
        self.tvel = np.zeros((num_envs, 2))
        self.t = np.zeros(num_envs, dtype=np.int64)
        self.ret = np.zeros(num_envs)

    def _reset_some(self, mask):
        k = int(mask.sum())
        if k == 0:
            return
        self.pos[mask] = self.rng.uniform(-1, 1, (k, 2))
        self.vel[mask] = 0
        self.target[mask] = self.rng.uniform(-1, 1, (k, 2))
        ang = self.rng.uniform(0, 2 * np.pi, k)
        self.tvel[mask] = 0.3 * np.stack([np.cos(ang), np.sin(ang)], 1)
        self.t[mask] = 0
        self.ret[mask] = 0

    def _obs(self, out):
        d = self.target - self.pos
        out[:, 0:2] = self.pos
        out[:, 2:4] = self.vel
        out[:, 4:6] = d
        out[:, 6:8] = self.tvel
        out[:, 8] = np.sqrt(d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1])
        out[:, 9] = self.t / self.max_steps
        return out

    def reset(self, out):
        self._reset_some(np.ones(self.n, dtype=bool))
        return self._obs(out)

    def step(self, action, out):
        """writes the next observation into out"""
        dt = 0.05
        a = np.minimum(np.maximum(action, -1), 1)
        self.vel *= 1 - 0.8 * dt
        self.vel += (4.0 * dt) * a
        self.pos += dt * self.vel
        hit = np.abs(self.pos) > 1.5
        if hit.any():
            self.vel[hit] *= -0.5
            np.clip(self.pos, -1.5, 1.5, out=self.pos)
        self.target += dt * self.tvel
        far = np.abs(self.target) > 1.2
        if far.any():
            self.tvel[far] *= -1
            np.clip(self.target, -1.2, 1.2, out=self.target)
        d = self.target - self.pos
        dist = np.sqrt(d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1])
        reward = -dist + 0.5 * (dist < 0.15) - 0.05 * (a * a).sum(1)
        self.t += 1
        self.ret += reward
        done = self.t >= self.max_steps
        finished = None
        if done.any():
            finished = self.ret[done].tolist()
            self._reset_some(done)
        self._obs(out)
        return reward, done, finished


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent:
    """actor (index 0) and critic (index 1) as one stacked MLP; all parameters live in self.flat, gradients in self.grad"""

    def __init__(self, obs_dim, act_dim, hidden=64):
        critic = [layer_init(nn.Linear(obs_dim, hidden)), layer_init(nn.Linear(hidden, hidden)),
                  layer_init(nn.Linear(hidden, 1), std=1.0)]
        actor = [layer_init(nn.Linear(obs_dim, hidden)), layer_init(nn.Linear(hidden, hidden)),
                 layer_init(nn.Linear(hidden, act_dim), std=0.01)]
        shapes = dict(w1=(obs_dim, 2 * hidden), b1=(2 * hidden,), w2=(2, hidden, hidden), b2=(2, 1, hidden),
                      wa=(hidden, act_dim), ba=(act_dim,), wv=(hidden, 1), bv=(1,), logstd=(act_dim,))
        size = sum(int(np.prod(s)) for s in shapes.values())
        self.flat = nn.Parameter(torch.zeros(size))
        self.grad = torch.zeros(size)
        self.flat.grad = self.grad
        self.p, self.g = {}, {}
        i = 0
        for name, s in shapes.items():
            n = int(np.prod(s))
            self.p[name] = self.flat.data[i:i + n].view(s)
            self.g[name] = self.grad[i:i + n].view(s)
            i += n
        with torch.no_grad():
            p = self.p
            for k, net in enumerate((actor, critic)):
                p["w1"][:, k * hidden:(k + 1) * hidden] = net[0].weight.t()
                p["w2"][k] = net[1].weight.t()
            p["wa"].copy_(actor[2].weight.t())
            p["wv"].copy_(critic[2].weight.t())
        self.hidden = hidden
        # numpy views of the actor for the rollout
        self.np = {k: v.numpy() for k, v in self.p.items()}

    def act_mean(self, obs):
        q, h = self.np, self.hidden
        x = np.tanh(obs @ q["w1"][:, :h] + q["b1"][:h])
        x = np.tanh(x @ q["w2"][0] + q["b2"][0])
        return x @ q["wa"] + q["ba"]

    def values(self, obs):
        p, h = self.p, self.hidden
        x = torch.addmm(p["b1"][h:], obs, p["w1"][:, h:]).tanh_()
        x = torch.addmm(p["b2"][1], x, p["w2"][1]).tanh_()
        return torch.addmm(p["bv"], x, p["wv"]).squeeze(1)

    def loss_and_grad(self, obs, act, old_logp, adv, ret, val, clip, ent_coef, vf_coef):
        p, g, h = self.p, self.g, self.hidden
        m = obs.size(0)
        # forward
        h1 = torch.addmm(p["b1"], obs, p["w1"]).tanh_()                       # M x 2H
        h1s = h1.view(m, 2, h).transpose(0, 1)                                # 2 x M x H
        h2 = torch.baddbmm(p["b2"], h1s, p["w2"]).tanh_()
        diff = act - torch.addmm(p["ba"], h2[0], p["wa"])
        v = torch.addmm(p["bv"], h2[1], p["wv"]).squeeze(1)
        logstd = p["logstd"]
        inv_var = torch.exp(-2 * logstd)
        sq = diff * diff * inv_var
        logratio = (sq.sum(1) * -0.5).sub_(logstd.sum() + LOG_2PI).sub_(old_logp)
        ratio = logratio.exp()
        # policy
        outside = (ratio - 1).abs() > clip
        pg1 = adv * ratio
        pg2 = adv * ratio.clamp(1 - clip, 1 + clip)
        take1 = pg1 <= pg2                          # max(-pg1, -pg2)
        d_logp = (pg1 * take1).mul_(-1 / m)         # zero where the clipped branch is active
        # value
        err = v - ret
        dv = v - val
        dv_c = dv.clamp(-clip, clip)
        err_c = (val + dv_c).sub_(ret)
        e1, e2 = err * err, err_c * err_c
        d_v = (err * (e1 >= e2).logical_or_(dv == dv_c)).mul_(vf_coef / m).unsqueeze(1)
        loss = (0.5 * vf_coef) * torch.maximum(e1, e2).mean() - torch.minimum(pg1, pg2).mean() \
            - ent_coef * (logstd.sum() + ENT_CONST)
        # backward
        d_mu = diff * (inv_var * d_logp.unsqueeze(1))
        torch.mv(sq.sub_(1).t(), d_logp, out=g["logstd"])
        g["logstd"].sub_(ent_coef)
        torch.mm(h2[0].t(), d_mu, out=g["wa"])
        torch.sum(d_mu, 0, out=g["ba"])
        torch.mm(h2[1].t(), d_v, out=g["wv"])
        torch.sum(d_v, 0, out=g["bv"])
        d2 = torch.empty_like(h2)
        torch.mm(d_mu, p["wa"].t(), out=d2[0])
        torch.mul(d_v, p["wv"].t(), out=d2[1])
        d2 = torch.ops.aten.tanh_backward(d2, h2)
        torch.bmm(h1s.transpose(1, 2), d2, out=g["w2"])
        torch.sum(d2, 1, keepdim=True, out=g["b2"])
        d1 = torch.empty_like(h1)
        torch.bmm(d2, p["w2"].transpose(1, 2), out=d1.view(m, 2, h).transpose(0, 1))
        d1 = torch.ops.aten.tanh_backward(d1, h1)
        torch.mm(obs.t(), d1, out=g["w1"])
        torch.sum(d1, 0, out=g["b1"])
        return loss, logratio, ratio, outside


LOG_2PI = float(np.log(2 * np.pi))                  # 2 dimensions * 0.5 * log(2 pi)
ENT_CONST = 1.0 + LOG_2PI                           # 2 dimensions * (0.5 + 0.5 * log(2 pi))


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200, help="number of policy updates (rollouts)")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--num-minibatches", type=int, default=16)
    parser.add_argument("--update-epochs", type=int, default=8)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.001)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    S, E = args.num_steps, args.num_envs
    batch_size = E * S
    mb = batch_size // args.num_minibatches

    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)

    envs = VecReacher(E, seed=args.seed)
    D, A = envs.obs_dim, envs.act_dim
    agent = Agent(D, A)
    optimizer = torch.optim.Adam([agent.flat], lr=args.learning_rate, eps=1e-5, fused=True)

    obs = np.zeros((S + 1, E, D), dtype=np.float32)
    actions = np.zeros((S, E, A), dtype=np.float32)
    rewards = np.zeros((S, E), dtype=np.float32)
    dones = np.zeros((S, E), dtype=np.float32)      # dones[t]: the episode ended with step t
    advantages = np.zeros((S, E), dtype=np.float32)
    # columns: obs | action | logprob | advantage | return | value
    table = torch.zeros(batch_size, D + A + 4)

    start_time = time.time()
    returns_log = []
    envs.reset(obs[0])
    loss_sum, clip_sum = torch.zeros(()), torch.zeros(())
    n_mb = args.update_epochs * args.num_minibatches

    for update in range(1, args.steps + 1):
        eps = rng.standard_normal((S, E, A), dtype=np.float32)
        noise = eps * np.exp(agent.np["logstd"])
        for t in range(S):
            action = np.add(agent.act_mean(obs[t]), noise[t], out=actions[t])
            rewards[t], dones[t], finished = envs.step(action, obs[t + 1])
            if finished:
                returns_log.extend(finished)

        values = agent.values(torch.from_numpy(obs).view(-1, D)).view(S + 1, E).numpy()
        not_done = 1.0 - dones
        delta = rewards + args.gamma * values[1:] * not_done - values[:-1]
        decay = args.gamma * args.gae_lambda * not_done
        last = np.zeros(E, dtype=np.float32)
        for t in range(S - 1, -1, -1):
            last = delta[t] + decay[t] * last
            advantages[t] = last

        tab = table.numpy().reshape(S, E, -1)
        tab[..., :D] = obs[:-1]
        tab[..., D:D + A] = actions
        tab[..., D + A] = -0.5 * (eps * eps).sum(-1) - agent.np["logstd"].sum() - LOG_2PI
        tab[..., D + A + 1] = advantages
        tab[..., D + A + 2] = advantages + values[:-1]
        tab[..., D + A + 3] = values[:-1]
        obs[0] = obs[S]

        report = update % 5 == 0 or update == 1
        loss_sum.zero_()
        clip_sum.zero_()
        for epoch in range(args.update_epochs):
            data = table[torch.randperm(batch_size)]
            o = data[:, :D].contiguous().split(mb)
            a = data[:, D:D + A].contiguous().split(mb)
            logp, adv, ret, val = data[:, D + A:].t().contiguous()
            adv = adv.view(-1, mb)
            adv = ((adv - adv.mean(1, keepdim=True)) / (adv.std(1, keepdim=True) + 1e-8)).unbind(0)
            for batch in zip(o, a, logp.split(mb), adv, ret.split(mb), val.split(mb)):
                loss, logratio, ratio, outside = agent.loss_and_grad(*batch, args.clip_coef, args.ent_coef, args.vf_coef)
                norm = torch.linalg.vector_norm(agent.grad)
                agent.grad.mul_((args.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
                optimizer.step()
                if report:
                    loss_sum += loss
                    clip_sum += outside.float().mean()

        if report:
            approx_kl = ((ratio - 1) - logratio).mean()
            mean_ret = np.mean(returns_log[-100:]) if returns_log else float("nan")
            print(f"step {update} loss {loss_sum.item() / n_mb:.4f} return {mean_ret:.2f} kl {approx_kl.item():.4f} "
                  f"clipfrac {clip_sum.item() / n_mb:.3f} SPS {int(update * batch_size / (time.time() - start_time))}", flush=True)


if __name__ == "__main__":
    main()
