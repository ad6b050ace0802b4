"""t5_lightning.py by hand: a plain loop, groups of similar length instead of everything padded to the maximum,
bfloat16, one position bias for all groups, head only on real target tokens, fused AdamW."""
import argparse

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import get_linear_schedule_with_warmup

from flat import BF, attend, dropout, heads, key_bias, lin, lin_cat, merge, new_masks, pad_flat, plan
from t5_lightning import args_dict, get_model, get_tokenizer, make_articles

CAUSAL = torch.full((64, 64), float("-inf"), dtype=BF).triu_(1)


def collate(batch):
    batch = sorted(batch, key=lambda b: -len(b[0]))
    src, tgt = [b[0] for b in batch], [b[1] for b in batch]
    len_src, len_tgt = [len(s) for s in src], [len(t) for t in tgt]
    sizes = plan([len_src, len_tgt], overhead=110)
    s_ids, _, s_shape = pad_flat(src, sizes, 0)
    t_ids, _, t_shape = pad_flat([[0] + t[:-1] for t in tgt], sizes, 0)  # the pad token starts the decoder
    labels, _, _ = pad_flat(tgt, sizes, -100)
    rows = (labels != -100).nonzero().squeeze(1)
    return s_ids, s_shape, key_bias(len_src, s_shape), t_ids, t_shape, rows, labels[rows]


def rms(x, ln):
    return F.rms_norm(x, (x.shape[-1],), ln.weight.to(x.dtype), ln.variance_epsilon)


def ff(x, layer, p):
    h = dropout(F.relu(lin(rms(x, layer.layer_norm), layer.DenseReluDense.wi)), p)
    return x + dropout(lin(h, layer.DenseReluDense.wo), p)


def forward(model, batch):
    s_ids, s_shape, s_bias, t_ids, t_shape, rows, labels = batch
    new_masks()
    c = model.config
    H, p = c.num_heads, c.dropout_rate
    inner = H * c.d_kv

    longest = max(L for _, L in s_shape)
    pb = model.encoder.block[0].layer[0].SelfAttention.compute_bias(longest, longest).to(BF)
    bias = [pb[:, :, :L, :L] if b is None else pb[:, :, :L, :L] + b for (_, L), b in zip(s_shape, s_bias)]
    x = dropout(F.embedding(s_ids, model.shared.weight).to(BF), p)
    for block in model.encoder.block:
        sa = block.layer[0]
        a = sa.SelfAttention
        qkv = lin_cat(rms(x, sa.layer_norm), (a.q, a.k, a.v)).view(-1, 3, inner)
        o = merge([attend(q, k, v, b, 1, p) for (q, k, v), b in zip(heads(qkv, s_shape, H), bias)])
        x = ff(x + dropout(lin(o, a.o), p), block.layer[1], p)
    memory = dropout(rms(x, model.encoder.final_layer_norm), p)

    blocks = model.decoder.block
    cross = [m for b in blocks for m in (b.layer[1].EncDecAttention.k, b.layer[1].EncDecAttention.v)]
    kvs = heads(lin_cat(memory, cross).view(-1, len(cross), inner), s_shape, H)
    longest = max(L for _, L in t_shape)
    pb = blocks[0].layer[0].SelfAttention.compute_bias(longest, longest).to(BF) + CAUSAL[:longest, :longest]
    bias = [pb[:, :, :L, :L] for _, L in t_shape]
    x = dropout(F.embedding(t_ids, model.shared.weight).to(BF), p)
    for i, block in enumerate(blocks):
        sa, ca = block.layer[0], block.layer[1]
        a = sa.SelfAttention
        qkv = lin_cat(rms(x, sa.layer_norm), (a.q, a.k, a.v)).view(-1, 3, inner)
        o = merge([attend(q, k, v, b, 1, p) for (q, k, v), b in zip(heads(qkv, t_shape, H), bias)])
        x = x + dropout(lin(o, a.o), p)
        a = ca.EncDecAttention
        q = lin(rms(x, ca.layer_norm), a.q)
        o = merge([attend(q[0], kv[2 * i], kv[2 * i + 1], b, 1, p)
                   for q, kv, b in zip(heads(q, t_shape, H), kvs, s_bias)])
        x = ff(x + dropout(lin(o, a.o), p), block.layer[2], p)
    x = dropout(rms(x.index_select(0, rows), model.decoder.final_layer_norm), p)
    if c.scale_decoder_outputs:
        x = x * (c.d_model ** -0.5)
    return F.cross_entropy(lin(x, model.lm_head).float(), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()
    hp = args_dict
    pl.seed_everything(hp["seed"])

    pairs = make_articles(1600)
    tokenizer = get_tokenizer(pairs)
    model = get_model(tokenizer)
    src = tokenizer(["summarize: " + a for a, _ in pairs], max_length=hp["max_input_length"], truncation=True)
    tgt = tokenizer([h for _, h in pairs], max_length=hp["max_output_length"], truncation=True)
    loader = DataLoader(list(zip(src["input_ids"], tgt["input_ids"])), batch_size=hp["train_batch_size"],
                        drop_last=True, shuffle=True, collate_fn=collate)
    params = list(model.parameters())
    # weight decay is 0 in both of the notebook's parameter groups
    optimizer = AdamW(params, lr=hp["learning_rate"], eps=hp["adam_epsilon"], weight_decay=0.0, fused=True)
    scheduler = get_linear_schedule_with_warmup(optimizer, hp["warmup_steps"], args.steps)

    model.train()
    step = 0
    while step < args.steps:
        for batch in loader:
            loss = forward(model, batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, hp["max_grad_norm"], foreach=True)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 10 == 0 or step == 1:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
