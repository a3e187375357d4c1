# SPDX-License-Identifier: Apache-2.0
"""Makes what torchtitan's wheel does not ship: a byte-level tokenizer and a small text data set, both from local text.

    python titan_assets.py DIR      writes DIR/tokenizer and DIR/data
"""
import json
import pathlib
import sys
import sysconfig

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"


def main(target):
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS])
    folder = target / "tokenizer"
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": EOS}))

    (target / "data").mkdir()
    with (target / "data" / "train.jsonl").open("w") as out:
        for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]:
            out.write(json.dumps({"text": path.read_text(errors="replace")}) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
