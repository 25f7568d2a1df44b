"""A PyTorch loop with checkpoints that stops within an epoch and resumes with the next batch.

Run `make demo` first to create the data: python examples/python/pytorch.py [CHECKPOINT]
"""

import sys
from pathlib import Path

import feedline
import torch


def train(checkpoint: Path, stop_after: int | None = None, epochs: int = 2) -> list[float]:
    """Trains, from the checkpoint if it exists, and returns the loss of each step."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    with feedline.open("examples/demo.yaml", batch_size=64, epochs=epochs, device=device) as job:
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            job.load_state_dict(saved["data"])
        for batch in job.batches():
            images = batch["image"].permute(0, 3, 1, 2).float() / 255
            loss = torch.nn.functional.cross_entropy(model(images), batch["label"].long() % 1000)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == stop_after:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": job.state_dict()}, checkpoint)
                break
    return losses


if __name__ == "__main__":
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "target/demo/checkpoint.pt")
    file.unlink(missing_ok=True)
    begun = train(file, stop_after=3)
    print(f"stopped after {len(begun)} steps and saved the checkpoint {file}")
    rest = train(file)
    file.unlink()
    whole = train(file)
    assert begun + rest == whole, "the losses of the resumed run differ"
    print(f"resumed for {len(rest)} steps with the losses of an uninterrupted run")
