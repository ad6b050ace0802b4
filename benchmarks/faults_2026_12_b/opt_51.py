"""Levenberg-Marquardt as a torch optimizer, compared on a small curve-fitting network."""
import torch
import torch.nn as nn
from torch.func import functional_call, jacrev, vmap

torch.manual_seed(21)


class LevenbergMarquardt(torch.optim.Optimizer):
    """Damped Gauss-Newton on the residuals of a scalar-output model."""

    def __init__(self, model, damping=1e-1, up=4.0, down=0.7):
        self.model = model
        self.names = [n for n, _ in model.named_parameters()]
        self.shapes = [p.shape for p in model.parameters()]
        self.sizes = [p.numel() for p in model.parameters()]
        super().__init__(model.parameters(), dict(damping=damping, up=up, down=down))

    def _unflatten(self, flat):
        parts = flat.split(self.sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes)}

    def _flat(self):
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])

    def _predict(self, params, x):
        return functional_call(self.model, params, (x,)).squeeze(-1)

    @torch.no_grad()
    def step(self, x, y):
        group = self.param_groups[0]
        theta = self._flat()
        params = self._unflatten(theta)
        residual = self._predict(params, x) - y
        before = residual.square().mean()

        per_sample = vmap(jacrev(lambda p, xi: self._predict(p, xi.unsqueeze(0)).squeeze(0)), in_dims=(None, 0))
        blocks = per_sample(params, x)
        jac = torch.cat([blocks[n].reshape(x.size(0), -1) for n in self.names], dim=1)

        normal = jac.T @ jac / x.size(0)
        rhs = jac.T @ residual / x.size(0)
        normal.diagonal().add_(group["damping"])
        delta = torch.linalg.pinv(normal, hermitian=True) @ rhs

        trial = self._unflatten(theta - delta)
        after = (self._predict(trial, x) - y).square().mean()
        if after < before:
            for name, p in self.model.named_parameters():
                p.copy_(trial[name])
            group["damping"] = max(group["damping"] * group["down"], 1e-3)
        else:
            group["damping"] = min(group["damping"] * group["up"], 1e3)
        return before


class Network(nn.Module):
    def __init__(self, width=14):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(3, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.body(x)


def surface(x):
    return torch.sin(3 * x[:, 0]) * x[:, 1] + 0.5 * torch.cos(4 * x[:, 2]) + 0.2 * x[:, 0] * x[:, 2]


def batches(n, size, steps):
    x = torch.rand(n, 3) * 2 - 1
    y = surface(x) + 0.02 * torch.randn(n)
    for _ in range(steps):
        idx = torch.randint(0, n, (size,))
        yield x[idx], y[idx]


def main(steps=500, batch=2048):
    net = Network()
    opt = LevenbergMarquardt(net)
    test_x = torch.rand(2000, 3) * 2 - 1
    test_y = surface(test_x)
    n_params = sum(p.numel() for p in net.parameters())
    print(f"{n_params} parameters")
    for k, (x, y) in enumerate(batches(20_000, batch, steps)):
        loss = opt.step(x, y)
        if k % 50 == 0:
            with torch.no_grad():
                test = (net(test_x).squeeze(-1) - test_y).square().mean().item()
            print(f"step {k:4d}  train {loss.item():.6f}  test {test:.6f}  damping {opt.param_groups[0]['damping']:.4f}")


if __name__ == "__main__":
    main()
