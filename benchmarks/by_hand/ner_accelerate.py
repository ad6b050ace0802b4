"""Token classification with Accelerate, after chapter 7 of the Hugging Face course (CoNLL-2003 NER).

Sentences with entities are made up, the tokenizer is trained on them, BERT (small, but with the vocabulary size
of bert-base-cased) starts from scratch.
"""
import argparse

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import (BertConfig, BertForTokenClassification, DataCollatorForTokenClassification,
                          PreTrainedTokenizerFast, get_scheduler)

label_names = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]


def make_conll(n, seed=0):
    rng = np.random.default_rng(seed)
    parts = "an ber cal dor el fin gor hel in jan kor len mar nis ol pet ros sten tor ul ves win yor zel".split()

    def names(k, tails):
        return ["".join(rng.choice(parts, size=rng.integers(1, 4))).capitalize() + rng.choice(tails)
                for _ in range(k)]

    lists = {"PER": names(1500, ["", "son", "ov", "ez"]), "ORG": names(800, ["", "corp", "tech", "ia"]),
             "LOC": names(600, ["ville", "land", "burg", "ia"]), "MISC": names(400, ["ish", "ian", "ese"])}
    words = sorted({"".join(rng.choice(parts, size=rng.integers(1, 5))) for _ in range(9000)})
    rng.shuffle(words)
    freq = 1.0 / np.arange(3, 3 + len(words)) ** 1.05
    freq /= freq.sum()
    data = []
    for _ in range(n):
        length = int(np.clip(rng.lognormal(np.log(12), 0.65), 1, 110))
        plain = iter(rng.choice(words, p=freq, size=length))
        tokens, tags = [], []
        while len(tokens) < length:
            if rng.random() < 0.13:
                kind = rng.choice(list(lists), p=[0.35, 0.25, 0.28, 0.12])
                for j in range(rng.choice([1, 2, 3], p=[0.55, 0.35, 0.10])):
                    tokens.append(str(rng.choice(lists[kind])))
                    tags.append(label_names.index(("B-" if j == 0 else "I-") + kind))
            else:
                tokens.append(str(next(plain)))
                tags.append(0)
        data.append({"tokens": tokens + ["."], "ner_tags": tags + [0]})
    return data


def get_tokenizer(data):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=False)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=6000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                        show_progress=False)
    tok.train_from_iterator((" ".join(d["tokens"]) for d in data), trainer)
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tok.token_to_id("[CLS]")), ("[SEP]", tok.token_to_id("[SEP]"))])
    return PreTrainedTokenizerFast(tokenizer_object=tok, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
                                   sep_token="[SEP]", mask_token="[MASK]", model_max_length=512,
                                   model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def align_labels_with_tokens(labels, word_ids):
    new_labels = []
    current_word = None
    for word_id in word_ids:
        if word_id != current_word:
            # Start of a new word!
            current_word = word_id
            label = -100 if word_id is None else labels[word_id]
            new_labels.append(label)
        elif word_id is None:
            # Special token
            new_labels.append(-100)
        else:
            # Same word as previous token
            label = labels[word_id]
            # If the label is B-XXX we change it to I-XXX
            if label % 2 == 1:
                label += 1
            new_labels.append(label)
    return new_labels


def tokenize_and_align_labels(examples, tokenizer):
    tokenized_inputs = tokenizer([e["tokens"] for e in examples], truncation=True, is_split_into_words=True)
    tokenized_inputs["labels"] = [align_labels_with_tokens(e["ner_tags"], tokenized_inputs.word_ids(i))
                                  for i, e in enumerate(examples)]
    return [{k: v[i] for k, v in tokenized_inputs.items()} for i in range(len(examples))]


def get_data():
    raw = make_conll(1520)
    tokenizer = get_tokenizer(raw[:1440])
    return tokenize_and_align_labels(raw[:1440], tokenizer), tokenize_and_align_labels(raw[1440:], tokenizer), tokenizer


def get_model():
    id2label = {i: label for i, label in enumerate(label_names)}
    label2id = {v: k for k, v in id2label.items()}
    config = BertConfig(vocab_size=28996, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                        intermediate_size=1024, id2label=id2label, label2id=label2id)
    return BertForTokenClassification(config)


def postprocess(predictions, labels):
    predictions, labels = predictions.cpu().numpy(), labels.cpu().numpy()
    # Remove ignored index (special tokens) and convert to labels
    true_labels = [[label_names[l] for l in label if l != -100] for label in labels]
    true_predictions = [
        [label_names[p] for (p, l) in zip(prediction, label) if l != -100]
        for prediction, label in zip(predictions, labels)
    ]
    return true_labels, true_predictions


def evaluate(model, eval_dataloader, accelerator):
    model.eval()
    right = total = 0
    for batch in eval_dataloader:
        with torch.no_grad():
            outputs = model(**batch)
        predictions = outputs.logits.argmax(dim=-1)
        labels = batch["labels"]
        # Necessary to pad predictions and labels for being gathered
        predictions = accelerator.pad_across_processes(predictions, dim=1, pad_index=-100)
        labels = accelerator.pad_across_processes(labels, dim=1, pad_index=-100)
        true_labels, true_predictions = postprocess(accelerator.gather(predictions), accelerator.gather(labels))
        for t, p in zip(true_labels, true_predictions):
            right += sum(a == b for a, b in zip(t, p))
            total += len(t)
    return right / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=360)
    args = parser.parse_args()
    set_seed(42)

    train_dataset, eval_dataset, tokenizer = get_data()
    data_collator = DataCollatorForTokenClassification(tokenizer=tokenizer)
    train_dataloader = DataLoader(train_dataset, shuffle=True, collate_fn=data_collator, batch_size=8)
    eval_dataloader = DataLoader(eval_dataset, collate_fn=data_collator, batch_size=8)

    model = get_model()
    optimizer = AdamW(model.parameters(), lr=3e-4)

    accelerator = Accelerator()
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    num_training_steps = args.steps
    num_train_epochs = -(-num_training_steps // len(train_dataloader))
    lr_scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0,
                                 num_training_steps=num_training_steps)

    step = 0
    for epoch in range(num_train_epochs):
        model.train()
        for batch in train_dataloader:
            outputs = model(**batch)
            loss = outputs.loss
            accelerator.backward(loss)

            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0 or step == 1:
                accelerator.print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step >= num_training_steps:
                break
        accelerator.print(f"epoch {epoch}: accuracy {evaluate(model, eval_dataloader, accelerator):.4f}")


if __name__ == "__main__":
    main()
