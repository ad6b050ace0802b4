"""A GPT-2 from its config, trained on the standard library's bytes with accelerate."""

import argparse
import random
import sysconfig
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup


class Chunks(Dataset):
    def __init__(self, block):
        stdlib = Path(sysconfig.get_paths()["stdlib"])
        raw = b"".join(p.read_bytes() for p in sorted(stdlib.glob("*.py")))[:1_500_000]
        self.block = block
        self.ids = torch.tensor(list(raw), dtype=torch.long)

    def __len__(self):
        return len(self.ids) // self.block

    def __getitem__(self, i):
        ids = self.ids[i * self.block : (i + 1) * self.block]
        return {"input_ids": ids, "labels": ids.clone()}


def training_function(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulation, cpu=True)
    set_seed(args.seed)
    random.seed(args.seed)
    config = GPT2Config(
        vocab_size=256,
        n_positions=128,
        n_embd=256,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    loader = DataLoader(Chunks(128), shuffle=True, batch_size=args.batch_size, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 10, max(args.steps, 50))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    done = 0
    total = 0.0
    while done < args.steps:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                total += loss.detach().float().item() / args.accumulation
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                done += 1
                accelerator.print(f"step {done} loss {total:.8f}")
                total = 0.0
                if done >= args.steps:
                    break
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--lr", type=float, default=6e-4)
    training_function(parser.parse_args())


if __name__ == "__main__":
    main()
