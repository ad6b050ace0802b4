"""Supervised fine-tuning of a small LLaMA on instruction data, after train.py of tatsu-lab/stanford_alpaca.

Everything is made up: the instructions, the byte-level BPE tokenizer (trained on them) and the model.
"""
import argparse
import copy
from dataclasses import dataclass
from typing import Dict, Sequence

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer

IGNORE_INDEX = -100
PROMPT_DICT = {
    "prompt_input": (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
    ),
    "prompt_no_input": (
        "Below is an instruction that describes a task. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{instruction}\n\n### Response:"
    ),
}
VERBS = "List Write Describe Explain Rewrite Summarize Classify Compare Translate Generate Identify Suggest".split()
ONSETS = "b c d f g h l m n p r s t v w st tr pl ch br".split()
NUCLEI = "a e i o u ai ee ou".split()
CODAS = ["", "n", "r", "s", "t", "l", "nd", "ck"]


def make_alpaca_data(n, seed=0):
    """Stands in for alpaca_data.json: a list of {instruction, input, output}."""
    rng = np.random.default_rng(seed)
    words = set()
    while len(words) < 5000:
        k = rng.integers(1, 4)
        words.add("".join(rng.choice(ONSETS) + rng.choice(NUCLEI) + rng.choice(CODAS) for _ in range(k)))
    words = np.array(sorted(words))
    rng.shuffle(words)
    freq = 1.0 / np.arange(2, 2 + len(words))
    freq /= freq.sum()
    follow = rng.permutation(len(words))  # a word is often followed by its partner: something to learn

    def text(median, sigma, lo, hi):
        length = int(np.clip(rng.lognormal(np.log(median), sigma), lo, hi))
        ids = rng.choice(len(words), size=length, p=freq)
        for i in range(1, length):
            if rng.random() < 0.4:
                ids[i] = follow[ids[i - 1]]
        return " ".join(words[ids])

    data = []
    for _ in range(n):
        data.append({"instruction": rng.choice(VERBS) + " " + text(9, 0.4, 3, 40) + ".",
                     "input": text(14, 0.7, 2, 120) if rng.random() < 0.4 else "",
                     "output": text(32, 0.8, 1, 350) + "."})
    return data


def get_tokenizer(list_data_dict):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=6000, special_tokens=["<pad>", "<s>", "</s>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    texts = [" ".join(e.values()) for e in list_data_dict] + list(PROMPT_DICT.values()) * 20
    tok.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                   model_max_length=384, padding_side="right")


def _tokenize_fn(strings: Sequence[str], tokenizer) -> Dict:
    """Tokenize a list of strings."""
    tokenized_list = [
        tokenizer(text, return_tensors="pt", padding="longest", max_length=tokenizer.model_max_length, truncation=True)
        for text in strings
    ]
    input_ids = labels = [tokenized.input_ids[0] for tokenized in tokenized_list]
    input_ids_lens = labels_lens = [
        tokenized.input_ids.ne(tokenizer.pad_token_id).sum().item() for tokenized in tokenized_list
    ]
    return dict(input_ids=input_ids, labels=labels, input_ids_lens=input_ids_lens, labels_lens=labels_lens)


def preprocess(sources: Sequence[str], targets: Sequence[str], tokenizer) -> Dict:
    """Preprocess the data by tokenizing."""
    examples = [s + t for s, t in zip(sources, targets)]
    examples_tokenized, sources_tokenized = [_tokenize_fn(strings, tokenizer) for strings in (examples, sources)]
    input_ids = examples_tokenized["input_ids"]
    labels = copy.deepcopy(input_ids)
    for label, source_len in zip(labels, sources_tokenized["input_ids_lens"]):
        label[:source_len] = IGNORE_INDEX
    return dict(input_ids=input_ids, labels=labels)


class SupervisedDataset(Dataset):
    """Dataset for supervised fine-tuning."""

    def __init__(self, list_data_dict, tokenizer):
        super().__init__()
        prompt_input, prompt_no_input = PROMPT_DICT["prompt_input"], PROMPT_DICT["prompt_no_input"]
        sources = [
            prompt_input.format_map(example) if example.get("input", "") != "" else prompt_no_input.format_map(example)
            for example in list_data_dict
        ]
        targets = [f"{example['output']}{tokenizer.eos_token}" for example in list_data_dict]
        data_dict = preprocess(sources, targets, tokenizer)
        self.input_ids = data_dict["input_ids"]
        self.labels = data_dict["labels"]

    def __len__(self):
        return len(self.input_ids)

    def __getitem__(self, i) -> Dict[str, torch.Tensor]:
        return dict(input_ids=self.input_ids[i], labels=self.labels[i])


@dataclass
class DataCollatorForSupervisedDataset(object):
    """Collate examples for supervised fine-tuning."""

    tokenizer: transformers.PreTrainedTokenizerBase

    def __call__(self, instances: Sequence[Dict]) -> Dict[str, torch.Tensor]:
        input_ids, labels = tuple([instance[key] for instance in instances] for key in ("input_ids", "labels"))
        input_ids = torch.nn.utils.rnn.pad_sequence(
            input_ids, batch_first=True, padding_value=self.tokenizer.pad_token_id
        )
        labels = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX)
        return dict(
            input_ids=input_ids,
            labels=labels,
            attention_mask=input_ids.ne(self.tokenizer.pad_token_id),
        )


def get_model(tokenizer):
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=192, intermediate_size=512, num_hidden_layers=4,
                         num_attention_heads=6, max_position_embeddings=512, pad_token_id=tokenizer.pad_token_id,
                         bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
                         tie_word_embeddings=False)
    return LlamaForCausalLM(config)


def get_training_args(steps, per_device_train_batch_size=4, gradient_accumulation_steps=4, **kwargs):
    return transformers.TrainingArguments(
        output_dir="./alpaca_out",
        max_steps=steps,
        per_device_train_batch_size=per_device_train_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        learning_rate=1e-3,
        weight_decay=0.0,
        warmup_steps=6,
        lr_scheduler_type="cosine",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **kwargs,
    )


def train():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=180)
    args = parser.parse_args()
    transformers.set_seed(42)

    list_data_dict = make_alpaca_data(3000)
    tokenizer = get_tokenizer(list_data_dict)
    model = get_model(tokenizer)
    train_dataset = SupervisedDataset(list_data_dict, tokenizer)
    trainer = Trainer(model=model, args=get_training_args(args.steps), train_dataset=train_dataset,
                      data_collator=DataCollatorForSupervisedDataset(tokenizer))
    trainer.train()


if __name__ == "__main__":
    train()
