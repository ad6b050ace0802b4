"""The loop of transformers.Trainer, on a tiny GPT-2 made from its configuration."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Counting(Dataset):
    """Sequences that count up from a random start in steps of 1 to 4."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        tokens = (torch.arange(64) * (1 + index % 4) + index) % 128
        return {"input_ids": tokens, "labels": tokens}


class PrintingTrainer(Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print("step", self.state.global_step + 1, "loss", repr(loss.item()), flush=True)
        return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    parser.add_argument("--out", default="out", help="folder for the trained model")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)

    config = GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4)
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir=args.out,
        max_steps=args.steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        seed=torch.initial_seed() % 2**32,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
    )
    trainer = PrintingTrainer(model=model, args=arguments, train_dataset=Counting())
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
