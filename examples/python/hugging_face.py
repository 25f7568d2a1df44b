"""Hugging Face Trainer: `get_train_dataloader` returns the batches, and a callback stores the position with each checkpoint. Run `make demo` first."""

import json
import sys
import tempfile
from pathlib import Path

import feedline.torch
import torch
import transformers


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000))
        self.seen: list[int] = []

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> dict:
        self.seen += label.tolist()
        images = image.permute(0, 3, 1, 2).float() / 255
        return {"loss": torch.nn.functional.cross_entropy(self.layers(images), label.long() % 1000)}


class Trainer(transformers.Trainer):
    """Uses the batches of a job unchanged, because Feedline already divides rows among ranks."""

    def __init__(self, job: feedline.Job, **options: object) -> None:
        super().__init__(**options)
        self.job = job

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        return feedline.torch.loader(self.job)


class SavePosition(transformers.TrainerCallback):
    """Writes the position of the job into each checkpoint. The trainer prefetches batches, so the step is passed explicitly."""

    def __init__(self, job: feedline.Job) -> None:
        self.job = job

    def on_save(self, args: transformers.TrainingArguments, state: transformers.TrainerState, *_: object, **__: object) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        (folder / "feedline.json").write_text(json.dumps(self.job.state_dict(at=state.global_step)))


def fit(steps: int, folder: Path, checkpoint: Path | None = None) -> list[int]:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=4, use_cpu=True, report_to=[], disable_tqdm=True, remove_unused_columns=False,
        # The restored job starts at the checkpoint, so the trainer must not skip batches.
        ignore_data_skip=True,
    )
    model = Model()
    with feedline.open("examples/demo.yaml", batch_size=64, device="cpu") as job:
        if checkpoint is not None:
            job.load_state_dict(json.loads((checkpoint / "feedline.json").read_text()))
        trainer = Trainer(job, model=model, args=arguments, callbacks=[SavePosition(job)])
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return model.seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = fit(10, folder / "whole")
        begun = fit(4, folder / "parts")
        rest = fit(10, folder / "parts", folder / "parts/checkpoint-4")
    assert begun + rest == whole, "the resumed run received different rows"
    print(f"a run with a checkpoint after 4 of 10 steps received the same {len(whole)} rows as an uninterrupted run", file=sys.stdout)
