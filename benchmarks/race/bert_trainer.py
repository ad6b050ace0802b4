"""Masked language modelling with Transformers' Trainer: BERT from a config, made-up tokens."""

import argparse

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

MASK = 4


class TokenDataset(torch.utils.data.Dataset):
    """Runs of tokens, 15 % of them masked."""

    def __init__(self, count, length, vocab):
        start = torch.randint(0, vocab, (count, 1))
        self.tokens = (start + 17 * torch.arange(length)) % (vocab - 5) + 5

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        labels = self.tokens[i].clone()
        masked = torch.rand(labels.shape) < 0.15
        input_ids = labels.masked_fill(masked, MASK)
        labels[~masked] = -100
        attention_mask = torch.ones_like(input_ids)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


class SayLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--small", action="store_true", help="for a CPU")
    return parser.parse_args()


def train(args, **more):
    set_seed(0)
    width, layers, heads = (64, 2, 4) if args.small else (768, 12, 12)
    vocab, length = (600, 32) if args.small else (30522, 128)
    config = BertConfig(
        vocab_size=vocab,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    model = BertForMaskedLM(config)
    dataset = TokenDataset(256 if args.small else 20_000, length, vocab)
    training_args = TrainingArguments(
        output_dir="out/bert",
        max_steps=args.steps,
        per_device_train_batch_size=8 if args.small else 32,
        learning_rate=1e-4,
        weight_decay=0.01,
        logging_steps=min(10, args.steps),
        logging_first_step=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **more,
    )
    trainer = Trainer(model=model, args=training_args, train_dataset=dataset, callbacks=[SayLoss()])
    trainer.train()


if __name__ == "__main__":
    train(arguments())
