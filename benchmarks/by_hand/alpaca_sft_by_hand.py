"""alpaca_sft.py by hand: the 16 sequences of a step in one go, in groups of similar length; the fixed preamble of
the prompt is computed once per step and prompt type and shared; last layer's MLP, head and loss only where there
is a label; bfloat16."""
import argparse
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
import transformers
from transformers import Trainer

from alpaca_sft import PROMPT_DICT, get_model, get_tokenizer, get_training_args, make_alpaca_data
from flat import BF, attend, heads, lin, lin_cat, merge, pad_flat, plan

N_MAX = 512
CAUSAL = torch.full((N_MAX, N_MAX), float("-inf"), dtype=BF).triu_(1)


class Examples(torch.utils.data.Dataset):
    """(prompt type, ids without the shared prefix, number of those that are prompt)."""

    def __init__(self, data, tokenizer):
        kinds = [int(e["input"] != "") for e in data]
        forms = [PROMPT_DICT["prompt_no_input"], PROMPT_DICT["prompt_input"]]
        sources = [forms[k].format_map(e) for k, e in zip(kinds, data)]
        full = tokenizer([s + e["output"] + tokenizer.eos_token for s, e in zip(sources, data)],
                         max_length=tokenizer.model_max_length, truncation=True)["input_ids"]
        n_src = [len(s) for s in tokenizer(sources, max_length=tokenizer.model_max_length,
                                           truncation=True)["input_ids"]]
        self.prefix = []
        for kind in (0, 1):
            ids = [f for f, k in zip(full, kinds) if k == kind]
            n = 0
            while all(f[n] == ids[0][n] for f in ids):
                n += 1
            self.prefix.append(ids[0][:n])
        self.items = [(k, f[len(self.prefix[k]):], n - len(self.prefix[k])) for k, f, n in zip(kinds, full, n_src)]

    def __getitem__(self, i):
        return self.items[i]

    def __len__(self):
        return len(self.items)


class Collate:
    def __init__(self, prefix):
        self.prefix = prefix

    def __call__(self, batch):
        seqs, sizes, kinds, marks = [], [], [], []
        for kind in (0, 1):
            part = sorted((b for b in batch if b[0] == kind), key=lambda b: -len(b[1]))
            if not part:
                continue
            s = plan([len(b[1]) for b in part])
            sizes += [1] + s
            kinds += [(kind, True)] + [(kind, False)] * len(s)
            seqs += [self.prefix[kind]] + [b[1] for b in part]
            marks += [None] + [b[2] for b in part]
        ids, pos, shape = pad_flat(seqs, sizes, 0)
        rows, labels, off, k = [], [], 0, 0
        shift = []
        for (n, L), (kind, is_prefix) in zip(shape, kinds):
            shift.append(torch.full((n * L,), 0 if is_prefix else len(self.prefix[kind])))
            for r in range(n):
                if not is_prefix:
                    s, m = seqs[k], marks[k]
                    if len(s) > m:  # position m - 1 predicts token m
                        rows.append(torch.arange(m - 1, len(s) - 1) + off + r * L)
                        labels.append(torch.tensor(s[m:]))
                k += 1
            off += n * L
        return dict(input_ids=ids, position_ids=pos + torch.cat(shift), shape=shape, kinds=kinds,
                    rows=torch.cat(rows), labels=torch.cat(labels))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Fast(nn.Module):
    def __init__(self, hf):
        super().__init__()
        self.hf, self.config = hf, hf.config
        cos, sin = hf.model.rotary_emb(torch.zeros(1), torch.arange(N_MAX)[None])
        self.rope = SimpleNamespace(cos=cos[0].to(BF), sin=sin[0].to(BF))

    def forward(self, input_ids, position_ids, shape, kinds, rows, labels, num_items_in_batch=None, **kwargs):
        c, m = self.config, self.hf.model
        H, dim, eps = c.num_attention_heads, c.hidden_size, c.rms_norm_eps
        scale = (dim // H) ** -0.5
        cos = self.rope.cos[position_ids][:, None, None]
        sin = self.rope.sin[position_ids][:, None, None]
        x = F.embedding(input_ids, m.embed_tokens.weight, padding_idx=0).to(BF)
        for i, layer in enumerate(m.layers):
            a, f = layer.self_attn, layer.mlp
            h = F.rms_norm(x, (dim,), layer.input_layernorm.weight.to(BF), eps)
            qkv = lin_cat(h, (a.q_proj, a.k_proj, a.v_proj)).view(-1, 3, H, dim // H)
            qk, v = qkv.split([2, 1], 1)
            qkv = torch.cat((rotate(qk, cos, sin), v), 1).flatten(2)
            outs, pre = [], None
            for (q, k, v), (kind, is_prefix) in zip(heads(qkv, shape, H), kinds):
                if is_prefix:
                    pre = k, v
                    P = q.shape[2]
                    outs.append(attend(q, k, v, CAUSAL[:P, :P], scale, 0))
                else:
                    n, P, L = q.shape[0], pre[0].shape[2], q.shape[2]
                    k = torch.cat((pre[0].expand(n, -1, -1, -1), k), 2)
                    v = torch.cat((pre[1].expand(n, -1, -1, -1), v), 2)
                    outs.append(attend(q, k, v, CAUSAL[P:P + L, :P + L], scale, 0))
            o = merge(outs)
            if i == len(m.layers) - 1:
                o, x = o.index_select(0, rows), x.index_select(0, rows)
            x = x + lin(o, a.o_proj)
            h = F.rms_norm(x, (dim,), layer.post_attention_layernorm.weight.to(BF), eps)
            g, u = lin_cat(h, (f.gate_proj, f.up_proj)).chunk(2, -1)
            x = x + lin(F.silu(g) * u, f.down_proj)
        x = F.rms_norm(x, (dim,), m.norm.weight.to(BF), eps)
        logits = lin(x, self.hf.lm_head).float()
        loss = F.cross_entropy(logits, labels, reduction="sum")
        return {"loss": loss / (len(labels) if num_items_in_batch is None else num_items_in_batch)}


def train():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=180)
    args = parser.parse_args()
    transformers.set_seed(42)

    data = make_alpaca_data(3000)
    tokenizer = get_tokenizer(data)
    model = Fast(get_model(tokenizer))
    dataset = Examples(data, tokenizer)
    targs = get_training_args(args.steps, 16, 1, remove_unused_columns=False)
    trainer = Trainer(model=model, args=targs, train_dataset=dataset, data_collator=Collate(dataset.prefix))
    trainer.train()


if __name__ == "__main__":
    train()
