# PPO (CleanRL flavoured single file) on a vectorised numpy environment
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.normal import Normal


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

    def _obs(self):
        d = self.target - self.pos
        dist = np.linalg.norm(d, axis=1, keepdims=True)
        return np.concatenate(
            [self.pos, self.vel, d, self.tvel, dist, self.t[:, None] / self.max_steps], axis=1).astype(np.float32)

    def reset(self):
        self._reset_some(np.ones(self.n, dtype=bool))
        return self._obs()

    def step(self, action):
        dt = 0.05
        a = np.clip(action, -1, 1)
        self.vel = self.vel + dt * (4.0 * a - 0.8 * self.vel)
        self.pos = self.pos + dt * self.vel
        hit = np.abs(self.pos) > 1.5
        self.vel[hit] *= -0.5
        self.pos = np.clip(self.pos, -1.5, 1.5)
        self.target = self.target + dt * self.tvel
        out = np.abs(self.target) > 1.2
        self.tvel[out] *= -1
        self.target = np.clip(self.target, -1.2, 1.2)
        dist = np.linalg.norm(self.target - self.pos, axis=1)
        reward = -dist + 0.5 * (dist < 0.15) - 0.05 * (a ** 2).sum(1)
        self.t += 1
        self.ret += reward
        done = self.t >= self.max_steps
        info = {}
        if done.any():
            info["episode_return"] = self.ret[done].copy()
            self._reset_some(done)
        return self._obs(), reward, done, info


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 1), std=1.0),
        )
        self.actor_mean = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, act_dim), std=0.01),
        )
        self.actor_logstd = nn.Parameter(torch.zeros(1, act_dim))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        action_mean = self.actor_mean(x)
        action_logstd = self.actor_logstd.expand_as(action_mean)
        action_std = torch.exp(action_logstd)
        probs = Normal(action_mean, action_std)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x)


if __name__ == "__main__":
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
    batch_size = args.num_envs * args.num_steps
    minibatch_size = batch_size // args.num_minibatches

    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    envs = VecReacher(args.num_envs, seed=args.seed)
    agent = Agent(envs.obs_dim, envs.act_dim).to(device)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    # storage
    obs = torch.zeros((args.num_steps, args.num_envs, envs.obs_dim)).to(device)
    actions = torch.zeros((args.num_steps, args.num_envs, envs.act_dim)).to(device)
    logprobs = torch.zeros((args.num_steps, args.num_envs)).to(device)
    rewards = torch.zeros((args.num_steps, args.num_envs)).to(device)
    dones = torch.zeros((args.num_steps, args.num_envs)).to(device)
    values = torch.zeros((args.num_steps, args.num_envs)).to(device)

    start_time = time.time()
    returns_log = []
    next_obs = torch.Tensor(envs.reset()).to(device)
    next_done = torch.zeros(args.num_envs).to(device)

    for update in range(1, args.steps + 1):
        for step in range(0, args.num_steps):
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob

            next_obs, reward, done, info = envs.step(action.cpu().numpy())
            rewards[step] = torch.tensor(reward).to(device).view(-1)
            next_obs, next_done = torch.Tensor(next_obs).to(device), torch.Tensor(done).to(device)
            if "episode_return" in info:
                returns_log.extend(info["episode_return"].tolist())

        # bootstrap value if not done
        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rewards).to(device)
            lastgaelam = 0
            for t in reversed(range(args.num_steps)):
                if t == args.num_steps - 1:
                    nextnonterminal = 1.0 - next_done
                    nextvalues = next_value
                else:
                    nextnonterminal = 1.0 - dones[t + 1]
                    nextvalues = values[t + 1]
                delta = rewards[t] + args.gamma * nextvalues * nextnonterminal - values[t]
                advantages[t] = lastgaelam = delta + args.gamma * args.gae_lambda * nextnonterminal * lastgaelam
            returns = advantages + values

        b_obs = obs.reshape(-1, envs.obs_dim)
        b_logprobs = logprobs.reshape(-1)
        b_actions = actions.reshape(-1, envs.act_dim)
        b_advantages = advantages.reshape(-1)
        b_returns = returns.reshape(-1)
        b_values = values.reshape(-1)

        b_inds = np.arange(batch_size)
        clipfracs = []
        losses = []
        for epoch in range(args.update_epochs):
            np.random.shuffle(b_inds)
            for start in range(0, batch_size, minibatch_size):
                mb_inds = b_inds[start:start + minibatch_size]

                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions[mb_inds])
                logratio = newlogprob - b_logprobs[mb_inds]
                ratio = logratio.exp()

                with torch.no_grad():
                    approx_kl = ((ratio - 1) - logratio).mean()
                    clipfracs += [((ratio - 1.0).abs() > args.clip_coef).float().mean().item()]

                mb_advantages = b_advantages[mb_inds]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)

                pg_loss1 = -mb_advantages * ratio
                pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(pg_loss1, pg_loss2).mean()

                newvalue = newvalue.view(-1)
                v_loss_unclipped = (newvalue - b_returns[mb_inds]) ** 2
                v_clipped = b_values[mb_inds] + torch.clamp(newvalue - b_values[mb_inds], -args.clip_coef, args.clip_coef)
                v_loss_clipped = (v_clipped - b_returns[mb_inds]) ** 2
                v_loss = 0.5 * torch.max(v_loss_unclipped, v_loss_clipped).mean()

                entropy_loss = entropy.mean()
                loss = pg_loss - args.ent_coef * entropy_loss + v_loss * args.vf_coef

                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
                losses.append(loss.item())

        if update % 5 == 0 or update == 1:
            mean_ret = np.mean(returns_log[-100:]) if returns_log else float("nan")
            print(f"step {update} loss {np.mean(losses):.4f} return {mean_ret:.2f} kl {approx_kl.item():.4f} "
                  f"clipfrac {np.mean(clipfracs):.3f} SPS {int(update * batch_size / (time.time() - start_time))}", flush=True)
