"""The same GPT by hand: bf16, PyTorch's own attention, model and loss compiled as one."""

import torch
from gpt import GPT, CausalSelfAttention, Config, Small, arguments, make_tokens
from torch.nn import functional as F


def attention(self, x):
    B, T, C = x.size()  # noqa: N806
    q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head).unbind(2)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


def main():
    args = arguments()
    config = Small if args.small else Config
    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = make_tokens(config).to(device)
    places = torch.arange(config.block_size, device=device)

    def get_batch():
        ix = torch.randint(len(data) - config.block_size - 1, (config.batch_size,))
        if device == "cuda":
            ix = ix.pin_memory().to(device, non_blocking=True)
        at = ix[:, None] + places
        return data[at], data[at + 1]

    CausalSelfAttention.forward = attention
    model = GPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)

    def forward(x, y):
        with torch.autocast(device, torch.bfloat16):
            return model(x, y)[1]  # the logits are nobody's: the compiler need not keep them

    if device == "cuda":
        forward = torch.compile(forward)
    for step in range(1, args.steps + 1):
        loss = forward(*get_batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step <= 3 or step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
