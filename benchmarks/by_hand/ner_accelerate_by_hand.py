"""ner_accelerate.py by hand: embedding rows that no training sentence uses are left out of the gradient and of
AdamW (they only decay, which is made up for at the end), AdamW fused, groups of similar length, bfloat16."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import DataCollatorForTokenClassification, get_scheduler

from flat import BF, attend, dropout, heads, key_bias, lin, lin_cat, merge, new_masks, norm, pad_flat, plan
from ner_accelerate import evaluate, get_data, get_model


def make_collate(new_id):
    def collate(batch):
        batch = sorted(batch, key=lambda b: -len(b["input_ids"]))
        lengths = [len(b["input_ids"]) for b in batch]
        sizes = plan(lengths, overhead=35)
        ids, pos, shape = pad_flat([b["input_ids"] for b in batch], sizes, 0)
        labels, _, _ = pad_flat([b["labels"] for b in batch], sizes, -100)
        return new_id[ids], pos, shape, key_bias(lengths, shape), labels
    return collate


def forward(model, words, batch):
    ids, pos, shape, bias, labels = batch
    new_masks()
    c, e = model.config, model.bert.embeddings
    H, p = c.num_attention_heads, c.hidden_dropout_prob
    scale = (c.hidden_size // H) ** -0.5
    # token type is 0 everywhere
    x = F.embedding(ids, words) + F.embedding(pos, e.position_embeddings.weight) + e.token_type_embeddings.weight[0]
    x = dropout(norm(x.to(BF), e.LayerNorm), p)
    for layer in model.bert.encoder.layer:
        a = layer.attention.self
        qkv = lin_cat(x, (a.query, a.key, a.value)).view(-1, 3, c.hidden_size)
        o = merge([attend(q, k, v, b, scale, p) for (q, k, v), b in zip(heads(qkv, shape, H), bias)])
        out = layer.attention.output
        x = norm(dropout(lin(o, out.dense), p) + x, out.LayerNorm)
        h = lin(F.gelu(lin(x, layer.intermediate.dense)), layer.output.dense)
        x = norm(dropout(h, p) + x, layer.output.LayerNorm)
    return F.cross_entropy(lin(dropout(x, p), model.classifier).float(), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=360)
    args = parser.parse_args()
    set_seed(42)

    train_dataset, eval_dataset, tokenizer = get_data()
    used = torch.tensor(sorted({i for d in train_dataset for i in d["input_ids"]} | {0}))
    new_id = torch.zeros(28996, dtype=torch.long)
    new_id[used] = torch.arange(len(used))
    train_dataloader = DataLoader(train_dataset, shuffle=True, collate_fn=make_collate(new_id), batch_size=8)
    eval_dataloader = DataLoader(eval_dataset, batch_size=8,
                                 collate_fn=DataCollatorForTokenClassification(tokenizer=tokenizer))

    model = get_model()
    full = model.bert.embeddings.word_embeddings.weight
    full.requires_grad_(False)
    words = nn.Parameter(full[used].clone())
    optimizer = AdamW([words] + [p for p in model.parameters() if p.requires_grad], lr=3e-4, fused=True)

    accelerator = Accelerator()
    train_dataloader, eval_dataloader = accelerator.prepare(train_dataloader, eval_dataloader)
    num_training_steps = args.steps
    num_train_epochs = -(-num_training_steps // len(train_dataloader))
    lr_scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0,
                                 num_training_steps=num_training_steps)

    step, decay = 0, 1.0
    for epoch in range(num_train_epochs):
        model.train()
        for batch in train_dataloader:
            loss = forward(model, words, batch)
            loss.backward()

            group = optimizer.param_groups[0]
            decay *= 1 - group["lr"] * group["weight_decay"]
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0 or step == 1:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step >= num_training_steps:
                break
        with torch.no_grad():
            full *= decay
            full[used] = words
            decay = 1.0
        print(f"epoch {epoch}: accuracy {evaluate(model, eval_dataloader, accelerator):.4f}")


if __name__ == "__main__":
    main()
