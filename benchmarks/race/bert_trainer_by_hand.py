"""The same with the Trainer's own switches: bf16, TF32, fused AdamW, compiled, workers."""

import os

import torch
from bert_trainer import arguments, train

if __name__ == "__main__":
    cuda = torch.cuda.is_available()
    settings = {"bf16": True, "use_cpu": not cuda, "optim": "adamw_torch_fused"}
    if cuda:
        torch.set_float32_matmul_precision("high")
        settings |= {
            "torch_compile": True,
            "dataloader_num_workers": min(4, os.cpu_count() or 1),
            "dataloader_persistent_workers": True,
        }
    train(arguments(), **settings)
