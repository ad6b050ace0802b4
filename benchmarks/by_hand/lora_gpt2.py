"""Fine-tune a (small) GPT-2 with LoRA, written by hand.

The base model is frozen, only the low-rank matrices around c_attn and c_proj are trained.
"""
import argparse
import math
import random

import numpy as np
import torch
import torch.nn as nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


# ---------------------------------------------------------------- data

def make_vocabulary(n_words, rng):
    syllables = ["ba", "de", "ki", "lo", "mu", "na", "po", "ri", "sa", "te", "vu", "za", "shi", "tra", "ne", "go"]
    words = set()
    while len(words) < n_words:
        words.add("".join(rng.choice(syllables) for _ in range(rng.randint(1, 4))))
    return sorted(words)


def make_texts(n_texts, words, rng):
    """Texts out of topics: every topic has its own words, and a word has a few favourite successors."""
    topics = [rng.sample(words, 150) for _ in range(20)]
    follow = {w: rng.sample(words, 3) for w in words}
    texts = []
    for _ in range(n_texts):
        topic = rng.choice(topics)
        n = min(150, max(8, int(rng.lognormvariate(3.8, 0.6))))
        text = [rng.choice(topic)]
        while len(text) < n:
            if rng.random() < 0.6:
                text.append(rng.choice(follow[text[-1]]))
            else:
                # small ranks are more frequent
                text.append(topic[int(len(topic) * rng.random() ** 3)])
        texts.append(" ".join(text))
    return texts


class Tokenizer:
    def __init__(self, words):
        self.itos = ["<pad>", "<bos>", "<eos>", "<unk>"] + list(words)
        self.stoi = {w: i for i, w in enumerate(self.itos)}
        self.pad_token_id = 0
        self.bos_token_id = 1
        self.eos_token_id = 2

    def __len__(self):
        return len(self.itos)

    def encode(self, text, max_length):
        ids = [self.stoi.get(w, 3) for w in text.split()]
        return [self.bos_token_id] + ids[:max_length - 2] + [self.eos_token_id]


class TextDataset(Dataset):
    def __init__(self, texts, tokenizer, max_length):
        self.texts = texts
        self.tokenizer = tokenizer
        self.max_length = max_length

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, idx):
        return {"input_ids": self.tokenizer.encode(self.texts[idx], self.max_length)}


class DataCollator:
    """Pads to the longest text of the batch; padding does not count in the loss."""

    def __init__(self, pad_token_id):
        self.pad_token_id = pad_token_id

    def __call__(self, features):
        max_len = max(len(f["input_ids"]) for f in features)
        input_ids, attention_mask, labels = [], [], []
        for f in features:
            ids = f["input_ids"]
            n_pad = max_len - len(ids)
            input_ids.append(ids + [self.pad_token_id] * n_pad)
            attention_mask.append([1] * len(ids) + [0] * n_pad)
            labels.append(ids + [-100] * n_pad)
        return {
            "input_ids": torch.tensor(input_ids),
            "attention_mask": torch.tensor(attention_mask),
            "labels": torch.tensor(labels),
        }


# ---------------------------------------------------------------- LoRA

class LoRALayer(nn.Module):
    """Wraps a (frozen) Conv1D of GPT-2: y = base(x) + scaling * dropout(x) A B."""

    def __init__(self, base, r, alpha, dropout):
        super().__init__()
        self.base = base
        in_features, out_features = base.weight.shape     # Conv1D keeps its weight transposed
        self.lora_A = nn.Parameter(torch.empty(in_features, r))
        self.lora_B = nn.Parameter(torch.zeros(r, out_features))
        self.scaling = alpha / r
        self.dropout = nn.Dropout(dropout)
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + (self.dropout(x) @ self.lora_A @ self.lora_B) * self.scaling


def add_lora(model, r, alpha, dropout):
    for param in model.parameters():
        param.requires_grad = False
    for block in model.transformer.h:
        block.attn.c_attn = LoRALayer(block.attn.c_attn, r, alpha, dropout)
        block.attn.c_proj = LoRALayer(block.attn.c_proj, r, alpha, dropout)
        block.mlp.c_proj = LoRALayer(block.mlp.c_proj, r, alpha, dropout)
    return model


def print_trainable_parameters(model):
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    print(f"trainable params: {trainable:,} || all params: {total:,} || trainable%: {100 * trainable / total:.2f}")


# ---------------------------------------------------------------- training

def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
    def lr_lambda(step):
        if step < num_warmup_steps:
            return step / max(1, num_warmup_steps)
        return max(0.0, (num_training_steps - step) / max(1, num_training_steps - num_warmup_steps))
    return LambdaLR(optimizer, lr_lambda)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    losses = []
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        losses.append(model(**batch).loss.item())
    model.train()
    return sum(losses) / len(losses)


def train(model, loader, optimizer, scheduler, device, args):
    model.train()
    step, micro_step, running = 0, 0, 0.0
    optimizer.zero_grad()
    while step < args.steps:
        for batch in loader:
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss / args.grad_accum
            loss.backward()
            running += loss.item()
            micro_step += 1
            if micro_step % args.grad_accum != 0:
                continue

            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {running:.6f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
            running = 0.0
            if step >= args.steps:
                break


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--grad_accum", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup_steps", type=int, default=30)
    parser.add_argument("--total_steps", type=int, default=600)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--lora_r", type=int, default=8)
    parser.add_argument("--lora_alpha", type=int, default=16)
    parser.add_argument("--lora_dropout", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    set_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    rng = random.Random(args.seed)
    words = make_vocabulary(3000, rng)
    tokenizer = Tokenizer(words)
    texts = make_texts(4000, words, rng)
    collator = DataCollator(tokenizer.pad_token_id)
    train_set = TextDataset(texts[:-100], tokenizer, args.max_length)
    eval_set = TextDataset(texts[-100:], tokenizer, args.max_length)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, collate_fn=collator)
    eval_loader = DataLoader(eval_set, batch_size=args.batch_size, shuffle=False, collate_fn=collator)

    config = GPT2Config(vocab_size=len(tokenizer), n_positions=args.max_length, n_embd=384, n_layer=6, n_head=6,
                        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
                        pad_token_id=tokenizer.pad_token_id)
    model = GPT2LMHeadModel(config)
    model = add_lora(model, args.lora_r, args.lora_alpha, args.lora_dropout).to(device)
    print_trainable_parameters(model)

    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=args.lr, weight_decay=0.01)
    scheduler = get_linear_schedule_with_warmup(optimizer, args.warmup_steps, args.total_steps)

    train(model, train_loader, optimizer, scheduler, device, args)
    print(f"eval loss {evaluate(model, eval_loader, device):.6f}")


if __name__ == "__main__":
    main()
