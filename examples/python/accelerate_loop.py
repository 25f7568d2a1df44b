"""Accelerate: `save_state` and `load_state` include the registered job's position. Run `make demo` first."""

import tempfile

import feedline
import torch
from accelerate import Accelerator


def train(folder: str, load: bool, stop_after: int | None) -> list[int]:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    # Do not prepare the job: Feedline already divides rows among ranks, and `device` moves the batches.
    with feedline.open("examples/demo.yaml", batch_size=64, epochs=1, device=accelerator.device) as job:
        accelerator.register_for_checkpointing(job)
        if load:
            accelerator.load_state(folder)
        seen = []
        for step, batch in enumerate(job, start=1):
            seen += batch["label"].tolist()
            images = batch["image"].permute(0, 3, 1, 2).float() / 255
            accelerator.backward(torch.nn.functional.cross_entropy(model(images), batch["label"].long() % 1000))
            optimizer.step()
            optimizer.zero_grad()
            if step == stop_after:
                accelerator.save_state(folder)
                break
    return seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        whole = train(folder, load=False, stop_after=None)
        begun = train(folder, load=False, stop_after=3)
        rest = train(folder, load=True, stop_after=None)
    assert begun + rest == whole, "the resumed run received different rows"
    print(f"a run with a checkpoint after 3 steps received the same {len(whole)} rows as an uninterrupted run")
