# Physics-informed neural network for Burgers' equation
#   u_t + u u_x - (0.01/pi) u_xx = 0,  x in [-1, 1], t in [0, 1]
#   u(0, x) = -sin(pi x),  u(t, -1) = u(t, 1) = 0
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


class PINN(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.linears = nn.ModuleList(
            [nn.Linear(layers[i], layers[i + 1]) for i in range(len(layers) - 1)])
        self.activation = nn.Tanh()
        for lin in self.linears:
            nn.init.xavier_normal_(lin.weight)
            nn.init.zeros_(lin.bias)

    def forward(self, x, t):
        h = torch.cat([x, t], dim=1)
        for lin in self.linears[:-1]:
            h = self.activation(lin(h))
        return self.linears[-1](h)


def residual(model, x, t):
    u = model(x, t)
    u_t = torch.autograd.grad(u, t, grad_outputs=torch.ones_like(u), retain_graph=True, create_graph=True)[0]
    u_x = torch.autograd.grad(u, x, grad_outputs=torch.ones_like(u), retain_graph=True, create_graph=True)[0]
    u_xx = torch.autograd.grad(u_x, x, grad_outputs=torch.ones_like(u_x), retain_graph=True, create_graph=True)[0]
    return u_t + u * u_x - NU * u_xx


# training points
x_f = torch.rand(N_F, 1) * 2 - 1
t_f = torch.rand(N_F, 1)
x_f.requires_grad = True
t_f.requires_grad = True

x_i = torch.rand(N_U, 1) * 2 - 1
t_i = torch.zeros(N_U, 1)
u_i = -torch.sin(math.pi * x_i)
x_b = torch.cat([-torch.ones(N_U // 2, 1), torch.ones(N_U // 2, 1)])
t_b = torch.rand(N_U, 1)
u_b = torch.zeros(N_U, 1)

model = PINN([2, 20, 20, 20, 1])
optimizer = torch.optim.Adam(model.parameters(), lr=LR)
mse = nn.MSELoss()

start = time.time()
for epoch in range(EPOCHS):
    optimizer.zero_grad()
    f = residual(model, x_f, t_f)
    loss_f = mse(f, torch.zeros_like(f))
    loss_i = mse(model(x_i, t_i), u_i)
    loss_b = mse(model(x_b, t_b), u_b)
    loss = loss_f + loss_i + loss_b
    loss.backward()
    optimizer.step()
    if epoch % 200 == 0:
        print("Epoch %5d | loss %.3e | pde %.3e | ic %.3e | bc %.3e | %.1fs" % (
            epoch, loss.item(), loss_f.item(), loss_i.item(), loss_b.item(), time.time() - start))

print("final loss %.4e" % loss.item())
with torch.no_grad():
    xs = torch.linspace(-1, 1, 201).unsqueeze(1)
    for tt in (0.0, 0.25, 0.5, 0.75):
        u = model(xs, torch.full_like(xs, tt))
        print("t = %.2f   max |u| = %.3f" % (tt, u.abs().max().item()))
torch.save(model.state_dict(), "pinn_burgers.pth")
