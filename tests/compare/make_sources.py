# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/compare anew: make_sources.py tensorboard|huggingface|lightning FOLDER

Needs torch with tensorboard; transformers with accelerate; lightning. Run huggingface twice in the same folder: the second
time it resumes.
"""
import os
import shutil
import sys

import torch


def loss(i):
    return 4.0 / (1 + 0.1 * i) + 0.01 * (i % 3)


def tensorboard(root):
    from torch.utils.tensorboard import SummaryWriter

    shutil.rmtree(root, ignore_errors=True)
    writer = SummaryWriter(root + "/plain")
    for i in range(1, 21):
        writer.add_scalar("train/loss", loss(i), i, walltime=1.7e9 + 0.5 * i)
        writer.add_scalar("train/grad_norm", 1.0 / i, i, walltime=1.7e9 + 0.5 * i)
        if i % 10 == 0:
            writer.add_scalar("eval/loss", 9.0, i)
    writer.add_histogram("weights", torch.arange(10.0), 3)
    writer.add_text("note", "loss 5.5 step 1")
    writer.close()
    writer = SummaryWriter(root + "/tensor")
    for i in range(1, 21):
        writer.add_scalar("loss", loss(i), i, walltime=1.7e9 + 0.5 * i, new_style=True)
        writer.add_scalar("loss64", loss(i), i, new_style=True, double_precision=True)
    writer.close()
    for steps, more, begin in ((range(1, 16), 0, 0), (range(11, 21), 0.5, 100)):
        writer = SummaryWriter(root + "/resumed", purge_step=11 if begin else None)
        for i in steps:
            writer.add_scalar("loss", loss(i) + more, i, walltime=1.7e9 + begin + i)
        writer.close()
    writer = SummaryWriter(root + "/other")
    for i in range(1, 4):
        writer.add_scalar("perplexity/ce", 1.0, i)
        writer.add_scalar("lr", 0.1, i)
    writer.close()


def huggingface(root):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    again = os.path.isdir(root)
    os.environ["TENSORBOARD_LOGGING_DIR"] = root + "/runs/" + ("second" if again else "first")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(0, 64, (16,), generator=generator) for _ in range(400)]
    data = [{"input_ids": text, "labels": text} for text in texts]
    arguments = TrainingArguments(root, max_steps=60 if again else 40, logging_steps=1, eval_strategy="steps", eval_steps=10,
                                  save_steps=10, per_device_train_batch_size=4, report_to="tensorboard", use_cpu=True, seed=0,
                                  learning_rate=1e-2)
    Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8]).train(resume_from_checkpoint=again or None)


def lightning(root):
    import lightning
    from lightning.pytorch.callbacks import TQDMProgressBar
    from lightning.pytorch.loggers import CSVLogger

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def training_step(self, batch, _):
            value = (self.linear(batch) ** 2).mean()
            self.log("train_loss", value, prog_bar=True)
            return value

        def validation_step(self, batch, _):
            self.log("val_loss", (self.linear(batch) ** 2).mean(), prog_bar=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    lightning.seed_everything(0)
    data = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=4)
    trainer = lightning.Trainer(max_epochs=3, logger=CSVLogger(root, flush_logs_every_n_steps=5), log_every_n_steps=1,
                                enable_checkpointing=False, accelerator="cpu", callbacks=[TQDMProgressBar()])
    trainer.fit(Module(), data, data)


if __name__ == "__main__":
    {f.__name__: f for f in (tensorboard, huggingface, lightning)}[sys.argv[1]](sys.argv[2])
