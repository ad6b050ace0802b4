"""translation_transformer.py by hand: pairs tokenised once, each batch in groups of similar length instead of one
padded block, bfloat16, own forward pass over the same modules, generator only on real tokens, fused Adam."""
import argparse
import math
from timeit import default_timer as timer

import torch
import torch.nn.functional as F

from flat import BF, attend, dropout, heads, key_bias, lin, merge, new_masks, norm, pad_flat, plan
from translation_transformer import (BATCH_SIZE, BOS_IDX, EMB_SIZE, EOS_IDX, NHEAD, PAD_IDX, SRC_LANGUAGE,
                                     TGT_LANGUAGE, get_data, get_model, tokenize)

P = 0.1
D = EMB_SIZE
SCALE = (D // NHEAD) ** -0.5
CAUSAL = torch.full((128, 128), float("-inf"), dtype=BF).triu_(1)


def collate(batch):
    batch = sorted(batch, key=lambda b: -len(b[0]) - len(b[1]))
    src, tgt = [b[0] for b in batch], [b[1] for b in batch]
    len_src, len_in = [len(s) for s in src], [len(t) - 1 for t in tgt]
    sizes = plan([len_src, len_in], overhead=200)
    s_ids, s_pos, s_shape = pad_flat(src, sizes, PAD_IDX)
    t_ids, t_pos, t_shape = pad_flat([t[:-1] for t in tgt], sizes, PAD_IDX)
    out, _, _ = pad_flat([t[1:] for t in tgt], sizes, PAD_IDX)
    rows = (out != PAD_IDX).nonzero().squeeze(1)
    return s_ids, s_pos, s_shape, key_bias(len_src, s_shape), t_ids, t_pos, t_shape, rows, out[rows]


def embed(ids, pos, emb, pe):
    x = F.embedding(ids, emb.embedding.weight).to(BF) * math.sqrt(D) + pe[pos]
    return dropout(x, P)


def ff(x, layer, last_norm):
    h = dropout(F.relu(lin(x, layer.linear1)), P)
    return norm(x + dropout(lin(h, layer.linear2), P), last_norm)


def forward(model, pe, batch):
    s_ids, s_pos, s_shape, s_bias, t_ids, t_pos, t_shape, rows, labels = batch
    new_masks()
    tr = model.transformer
    x = embed(s_ids, s_pos, model.src_tok_emb, pe)
    for layer in tr.encoder.layers:
        a = layer.self_attn
        qkv = F.linear(x, a.in_proj_weight.to(BF), a.in_proj_bias.to(BF)).view(-1, 3, D)
        o = merge([attend(q, k, v, b, SCALE, P) for (q, k, v), b in zip(heads(qkv, s_shape, NHEAD), s_bias)])
        x = norm(x + dropout(lin(o, a.out_proj), P), layer.norm1)
        x = ff(x, layer, layer.norm2)
    memory = norm(x, tr.encoder.norm)

    layers = tr.decoder.layers
    w = torch.cat([l.multihead_attn.in_proj_weight[D:] for l in layers]).to(BF)
    b = torch.cat([l.multihead_attn.in_proj_bias[D:] for l in layers]).to(BF)
    kvs = F.linear(memory, w, b).view(-1, 2 * len(layers), D)
    kvs = heads(kvs, s_shape, NHEAD)
    x = embed(t_ids, t_pos, model.tgt_tok_emb, pe)
    for i, layer in enumerate(layers):
        a = layer.self_attn
        qkv = F.linear(x, a.in_proj_weight.to(BF), a.in_proj_bias.to(BF)).view(-1, 3, D)
        # padding is at the end: the causal mask alone keeps it from real positions
        o = merge([attend(q, k, v, CAUSAL[:L, :L], SCALE, P)
                   for (q, k, v), (_, L) in zip(heads(qkv, t_shape, NHEAD), t_shape)])
        x = norm(x + dropout(lin(o, a.out_proj), P), layer.norm1)
        a = layer.multihead_attn
        q = F.linear(x, a.in_proj_weight[:D].to(BF), a.in_proj_bias[:D].to(BF))
        o = merge([attend(q[0], kv[2 * i], kv[2 * i + 1], b, SCALE, P)
                   for q, kv, b in zip(heads(q, t_shape, NHEAD), kvs, s_bias)])
        x = norm(x + dropout(lin(o, a.out_proj), P), layer.norm2)
        x = ff(x, layer, layer.norm3)
    x = norm(x.index_select(0, rows), tr.decoder.norm)
    return F.cross_entropy(lin(x, model.generator).float(), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()
    torch.manual_seed(0)

    pairs, vocab = get_data()
    model = get_model(vocab)
    pe = model.positional_encoding.pos_embedding.squeeze(1).to(BF)
    data = [([BOS_IDX] + vocab[SRC_LANGUAGE](tokenize(s)) + [EOS_IDX],
             [BOS_IDX] + vocab[TGT_LANGUAGE](tokenize(t)) + [EOS_IDX]) for s, t in pairs]
    batches = [collate(data[i:i + BATCH_SIZE]) for i in range(0, len(data), BATCH_SIZE)]  # never shuffled
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0005, betas=(0.9, 0.98), eps=1e-9, fused=True)

    model.train()
    step, start = 0, timer()
    while step < args.steps:
        for batch in batches:
            loss = forward(model, pe, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            step += 1
            if step % 10 == 0 or step == 1:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step >= args.steps:
                break
    print(f"took {timer() - start:.1f} s")


if __name__ == "__main__":
    main()
