"""A small TverskyGPT-2 that learns the bytes of a text by transformers' Trainer; started again, it goes on.

python examples/train_gpt2.py book.txt out --steps 2000
torchrun --nproc-per-node 8 examples/train_gpt2.py book.txt out --steps 2000
tensorboard --logdir out
"""

import argparse
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments, set_seed

from similitude.models.callback import TverskyCallback
from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel

LENGTH = 64


def build(text: bytes, output: str | Path, **arguments) -> Trainer:
    """A Trainer for rows of 64 bytes; ``arguments`` are those of TrainingArguments."""
    set_seed(0)
    config = TverskyGPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, num_features=256, variant="all-1layer"
    )
    config.bos_token_id = config.eos_token_id = 0
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().unfold(0, LENGTH, LENGTH)
    return Trainer(
        TverskyGPT2LMHeadModel(config),
        TrainingArguments(output_dir=str(output), **arguments),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],  # pyright: ignore[reportArgumentType]
        callbacks=[TverskyCallback()],
    )


def last_checkpoint(output: Path) -> str | None:
    """The newest checkpoint that is whole: Trainer writes trainer_state.json last, and a kill may cut one short."""
    whole = [state.parent for state in output.glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda folder: int(folder.name.split("-")[1]))) if whole else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    trainer = build(
        given.text.read_bytes(),
        given.output,
        max_steps=given.steps,
        learning_rate=1e-3,
        per_device_train_batch_size=32,
        logging_steps=50,
        save_steps=500,
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(given.output))
    trainer.save_model()
