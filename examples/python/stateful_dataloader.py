"""torchdata's StatefulDataLoader over a job: its state is the job's. Run `make demo` first."""

import feedline.torch
from torchdata.stateful_dataloader import StatefulDataLoader


def loader() -> StatefulDataLoader:
    dataset = feedline.torch.IterableDataset("examples/demo.yaml", batch_size=64, epochs=1)
    return StatefulDataLoader(dataset, batch_size=None, num_workers=0)


if __name__ == "__main__":
    whole = [batch["label"].tolist() for batch in loader()]
    stopped = loader()
    begun = []
    for batch in stopped:
        begun.append(batch["label"].tolist())
        if len(begun) == 2:
            break
    state = stopped.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    rest = [batch["label"].tolist() for batch in resumed]
    assert begun + rest == whole, "the resumed run differs"
    print(f"{len(begun)} batches, a state, {len(rest)} more: the same as {len(whole)} at once")
