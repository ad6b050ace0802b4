"""The same by hand: data on the device, channels last, bf16, attention's kernel, compiled."""

import torch
from diffusion import EMA, TIMESTEPS, Attention, UNet, arguments, make_pictures, sizes
from torch.nn import functional as F


def attention(self, x):
    b, c, h, w = x.shape
    q, k, v = self.qkv(self.norm(x)).flatten(2).view(b, 3, self.heads, -1, h * w).unbind(1)
    y = F.scaled_dot_product_attention(q.mT, k.mT, v.mT)
    return x + self.out(y.mT.reshape(b, c, h, w))


class FastEMA(EMA):
    @torch.no_grad()
    def update(self, model):
        weights, averages = list(model.parameters()), list(self.model.parameters())
        torch._foreach_lerp_(averages, weights, 1 - self.decay)


def main():
    args = arguments()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    count, batch, base = sizes(args.small)
    pictures = make_pictures(count).to(device, memory_format=torch.channels_last)
    betas = torch.linspace(1e-4, 0.02, TIMESTEPS)
    alphas_bar = torch.cumprod(1 - betas, dim=0).to(device)

    Attention.forward = attention
    model = UNet(base).to(device, memory_format=torch.channels_last)
    ema = FastEMA(model)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)

    def forward(x0, t, noise):
        a = alphas_bar[t].view(-1, 1, 1, 1)
        xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
        with torch.autocast(device, torch.bfloat16):
            return F.mse_loss(model(xt, t).float(), noise)

    if device == "cuda":
        forward = torch.compile(forward)
    step = 0
    while step < args.steps:
        for rows in torch.randperm(count).to(device).split(batch):
            x0 = pictures[rows].contiguous(memory_format=torch.channels_last)
            t = torch.randint(0, TIMESTEPS, (batch,), device=device)
            loss = forward(x0, t, torch.randn_like(x0))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            ema.update(model)
            step += 1
            if step <= 3 or step % 10 == 0:
                print(f"step {step} loss {loss.item():.6f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
