# Physics-informed neural network for Burgers' equation: hand-optimised version of pinn_burgers.py.
#
# Same points, initial weights, Adam and number of epochs.  Instead of nested reverse-mode autograd, the value and the
# derivatives u_x, u_t, u_xx go forward together through the layers (Taylor mode): one matmul per layer for all of
# them and for the initial / boundary points too.  The loss and its gradient with respect to one flat parameter
# are compiled into one graph.
import math
import time

import torch
import torch.nn as nn

torch.manual_seed(1234)

N_F = 500        # collocation points
N_U = 100        # initial / boundary points (each)
EPOCHS = 5000
LR = 1e-3
NU = 0.01 / math.pi
LAYERS = [2, 20, 20, 20, 1]

# training points
x_f = torch.rand(N_F, 1) * 2 - 1
t_f = torch.rand(N_F, 1)
x_i = torch.rand(N_U, 1) * 2 - 1
t_i = torch.zeros(N_U, 1)
u_i = -torch.sin(math.pi * x_i)
x_b = torch.cat([-torch.ones(N_U // 2, 1), torch.ones(N_U // 2, 1)])
t_b = torch.rand(N_U, 1)

linears = nn.ModuleList([nn.Linear(LAYERS[i], LAYERS[i + 1]) for i in range(len(LAYERS) - 1)])
for lin in linears:
    nn.init.xavier_normal_(lin.weight)
    nn.init.zeros_(lin.bias)
flat = torch.cat([p.detach().flatten() for p in linears.parameters()]).requires_grad_(True)
flat.grad = torch.zeros_like(flat)
shapes = [tuple(p.shape) for p in linears.parameters()]
sizes = [p.numel() for p in linears.parameters()]

points = torch.cat([torch.cat([x_f, t_f], 1), torch.cat([x_i, t_i], 1), torch.cat([x_b, t_b], 1)]).t().contiguous()
target = torch.cat([u_i, torch.zeros(N_U, 1)]).t().contiguous()


def tanh_streams(z, zx, zt, zxx):
    """value (all points) and x-, t-, xx-derivatives (collocation points) through tanh"""
    a = torch.tanh(z)
    af = a[:, :N_F]
    d = 1 - af * af
    ax = d * zx
    hxx = -2 * af * ax * zx
    if zxx is not None:
        hxx = hxx + d * zxx
    return torch.cat([a, ax, d * zt, hxx], 1)


def losses(flat):
    p = [v.view(s) for v, s in zip(flat.split(sizes), shapes)]
    w = p[0]
    h = tanh_streams(w @ points + p[1][:, None], w[:, 0:1], w[:, 1:2], None)
    n = N_F + 2 * N_U
    for i in range(2, len(p) - 2, 2):
        z = p[i] @ h
        h = tanh_streams(z[:, :n] + p[i + 1][:, None], z[:, n:n + N_F], z[:, n + N_F:n + 2 * N_F], z[:, n + 2 * N_F:])
    u = p[-2] @ h
    v = u[:, :n] + p[-1][:, None]
    f = u[:, n + N_F:n + 2 * N_F] + v[:, :N_F] * u[:, n:n + N_F] - NU * u[:, n + 2 * N_F:]
    e = (v[:, N_F:] - target) ** 2
    loss_f, loss_i, loss_b = (f * f).mean(), e[:, :N_U].mean(), e[:, N_U:].mean()
    return loss_f + loss_i + loss_b, torch.stack([loss_f, loss_i, loss_b])


@torch.compile(fullgraph=True, options={"max_autotune": False})
def loss_and_grad(flat, grad):
    g, (loss, parts) = torch.func.grad_and_value(losses, has_aux=True)(flat)
    grad.copy_(g)
    return loss, parts


optimizer = torch.optim.Adam([flat], lr=LR, fused=True)
params, grad = flat.detach(), flat.grad

start = time.time()
with torch.no_grad():
    for epoch in range(EPOCHS):
        loss, parts = loss_and_grad(params, grad)
        optimizer.step()
        if epoch % 200 == 0:
            print("Epoch %5d | loss %.3e | pde %.3e | ic %.3e | bc %.3e | %.1fs" % (
                epoch, loss.item(), *parts.tolist(), time.time() - start))

    print("final loss %.4e" % loss.item())
    for p, v in zip(linears.parameters(), params.split(sizes)):
        p.copy_(v.view(p.shape))
    xs = torch.linspace(-1, 1, 201).unsqueeze(1)
    for tt in (0.0, 0.25, 0.5, 0.75):
        h = torch.cat([xs, torch.full_like(xs, tt)], 1)
        for lin in linears[:-1]:
            h = torch.tanh(lin(h))
        print("t = %.2f   max |u| = %.3f" % (tt, linears[-1](h).abs().max().item()))
torch.save({"linears." + k: v for k, v in linears.state_dict().items()}, "pinn_burgers.pth")
