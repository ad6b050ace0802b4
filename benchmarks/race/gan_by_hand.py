"""The same by hand: pictures on the device, channels last, bf16, compiled, fused Adam."""

import torch
from gan import NZ, Discriminator, Generator, arguments, make_pictures, sizes, weights_init
from torch.nn import functional as F


def main():
    args = arguments()
    torch.manual_seed(999)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    count, batch_size, width = sizes(args.small)
    pictures = make_pictures(count).to(device, memory_format=torch.channels_last)
    last = torch.channels_last
    generator = Generator(width).to(device).apply(weights_init).to(memory_format=last)
    discriminator = Discriminator(width).to(device).apply(weights_init).to(memory_format=last)
    discriminator.main.pop(-1)  # the sigmoid is part of the loss
    settings = {"lr": 2e-4, "betas": (0.5, 0.999), "fused": True}
    optimizer_d = torch.optim.Adam(discriminator.parameters(), **settings)
    optimizer_g = torch.optim.Adam(generator.parameters(), **settings)
    ones = torch.ones(batch_size, device=device)
    zeros = torch.zeros(batch_size, device=device)
    autocast = torch.autocast(device.type, torch.bfloat16)

    def make(noise):
        with autocast:
            return generator(noise)

    def judge(images, label):
        with autocast:
            output = discriminator(images).view(-1)
        return F.binary_cross_entropy_with_logits(output.float(), label)

    if device.type == "cuda":
        make, judge = torch.compile(make), torch.compile(judge)
    step = 0
    losses = []
    while step < args.steps:
        order = torch.randperm(count).to(device)
        for rows in order.split(batch_size):
            real = pictures[rows].contiguous(memory_format=last)
            loss_real = judge(real, ones)
            fake = make(torch.randn(batch_size, NZ, 1, 1, device=device))
            loss_fake = judge(fake.detach(), zeros)
            loss_d = loss_real + loss_fake
            loss_d.backward()
            optimizer_d.step()

            loss_g = judge(fake, ones)
            loss_g.backward()
            optimizer_g.step()
            optimizer_g.zero_grad(set_to_none=True)
            optimizer_d.zero_grad(set_to_none=True)

            losses.append((loss_d.detach(), loss_g.detach()))
            step += 1
            if step <= 3 or step % 10 == 0:
                print(f"step {step} loss {loss_d.item():.6f} generator {loss_g.item():.6f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
