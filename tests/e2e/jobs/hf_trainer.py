# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer with FSDP on a small Llama made from its configuration; no hub, random weights.

    torchrun --nproc-per-node 2 hf_trainer.py --fsdp-version 2 --steps 10 --dir DIR --out losses.json
"""
import argparse
import json
import pathlib
import sysconfig

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed


class Windows(torch.utils.data.Dataset):
    def __init__(self, seq, vary):
        text = b"".join(p.read_bytes() for p in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:10])
        self.ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.seq, self.vary = seq, vary

    def __len__(self):
        return len(self.ids) // self.seq - 1

    def __getitem__(self, i):
        length = self.seq - i * 37 % (self.seq * 7 // 8) if self.vary else self.seq
        ids = self.ids[i * self.seq : i * self.seq + length]
        return {"input_ids": ids, "labels": ids}


def padded(rows):
    """To the longest of the batch."""
    pad = torch.nn.utils.rnn.pad_sequence
    ids = [row["input_ids"] for row in rows]
    return {"input_ids": pad(ids, batch_first=True), "labels": pad(ids, batch_first=True, padding_value=-100),
            "attention_mask": pad([torch.ones_like(row) for row in ids], batch_first=True)}


class Keep(TrainerCallback):
    """The Trainer's own lines round the figures; this keeps what it logged."""

    def __init__(self):
        self.losses, self.norms = [], []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append(float(logs["loss"]).hex())
            self.norms.append(float(logs["grad_norm"]).hex())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--fsdp-version", type=int, choices=[1, 2], default=1)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--eval-every", type=int, default=0, help="steps between two evaluations, each followed by a checkpoint; 0: none")
    p.add_argument("--accum", type=int, default=1, help="micro-batches per step")
    p.add_argument("--seq", type=int, default=64)
    p.add_argument("--batch", type=int, default=4, help="sequences per rank and micro-batch")
    p.add_argument("--vary", action="store_true", help="sequences of different lengths, padded to the longest of a batch")
    p.add_argument("--vocabulary", type=int, default=256)
    p.add_argument("--empty-cache-every", type=int, help="steps between two calls of torch.cuda.empty_cache (default: none)")
    p.add_argument("--dir", required=True, help="the Trainer's output folder")
    p.add_argument("--out", type=pathlib.Path, required=True)
    args = p.parse_args()

    set_seed(0)
    config = LlamaConfig(vocab_size=args.vocabulary, hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=args.seq, use_cache=False)
    model = LlamaForCausalLM(config)
    fsdp = {"fsdp_version": args.fsdp_version, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    if args.fsdp_version == 2:
        fsdp["reshard_after_forward"] = True
    interruptions = {"save_strategy": "no"}
    if args.eval_every:
        steps = {"eval_steps": args.eval_every, "save_steps": args.eval_every}
        interruptions = {"eval_strategy": "steps", "save_strategy": "steps", "per_device_eval_batch_size": 4, **steps}
    training = TrainingArguments(
        output_dir=args.dir, max_steps=args.steps, per_device_train_batch_size=args.batch, learning_rate=3e-4, bf16=True, seed=0,
        logging_steps=1, logging_nan_inf_filter=False, gradient_accumulation_steps=args.accum, report_to=[], disable_tqdm=True,
        dataloader_num_workers=1, torch_empty_cache_steps=args.empty_cache_every, fsdp="full_shard auto_wrap", fsdp_config=fsdp, **interruptions,
    )
    keep = Keep()
    windows = Windows(args.seq, args.vary)
    few = torch.utils.data.Subset(windows, range(16))
    trainer = Trainer(model=model, args=training, train_dataset=windows, eval_dataset=few, callbacks=[keep],
                      data_collator=padded if args.vary else None)
    trainer.train()
    if trainer.is_world_process_zero():
        args.out.write_text(json.dumps({"losses": keep.losses, "grad_norms": keep.norms, "wrapper": type(trainer.model_wrapped).__name__}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
