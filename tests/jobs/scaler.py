"""Mixed precision by the script itself: autocast and a GradScaler, which may skip steps."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    parser.add_argument(
        "--init-scale", type=float, default=65536.0, help="1e38: skips the first steps"
    )
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    generator = torch.Generator().manual_seed(1)
    teacher = torch.randn(128, 10, generator=generator)
    model = nn.Sequential(
        nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=args.init_scale)

    for step in range(1, args.steps + 1):
        inputs = torch.randn(256, 128)
        labels = (inputs @ teacher).argmax(dim=1).to(device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print("step", step, "loss", repr(loss.item()))
    print("scale", scaler.get_scale())


if __name__ == "__main__":
    main()
