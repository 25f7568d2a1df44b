"""Lightning: a LightningDataModule that adds the position of the job to Lightning's checkpoints. Run `make demo` first."""

import tempfile
from pathlib import Path

import feedline.torch
import lightning
import torch


class Images(lightning.LightningDataModule):
    """Provides the batches of a job. The trainer calls `state_dict` and `load_state_dict` when it saves and loads a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.job = feedline.open("examples/demo.yaml", batch_size=64, device="cpu")

    def train_dataloader(self) -> torch.utils.data.DataLoader:
        return feedline.torch.loader(self.job)

    def state_dict(self) -> dict:
        # The trainer may have prefetched a batch, and `global_step` counts optimizer steps, so pass the number of completed batches.
        return self.job.state_dict(at=self.trainer.fit_loop.total_batch_idx + 1)

    def load_state_dict(self, state: dict) -> None:
        self.job.load_state_dict(state)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000))
        self.seen: list[int] = []

    def training_step(self, batch: dict, _: int) -> torch.Tensor:
        self.seen += batch["label"].tolist()
        images = batch["image"].permute(0, 3, 1, 2).float() / 255
        return torch.nn.functional.cross_entropy(self.layers(images), batch["label"].long() % 1000)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(steps: int, checkpoint: Path | None, root: str) -> tuple[Model, lightning.Trainer]:
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_steps=steps, enable_model_summary=False, default_root_dir=root, **options)
    model, data = Model(), Images()
    trainer.fit(model, data, ckpt_path=checkpoint, weights_only=False)
    return model, trainer


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        whole, _ = fit(10, None, folder)
        begun, trainer = fit(4, None, folder)
        file = Path(folder) / "four.ckpt"
        trainer.save_checkpoint(file)
        rest, _ = fit(10, file, folder)
    assert begun.seen + rest.seen == whole.seen, "the resumed run received different rows"
    print(f"a run with a checkpoint after 4 of 10 steps received the same {len(whole.seen)} rows as an uninterrupted run")
