"""torchdata: the state of a StatefulDataLoader contains the state of its job. Run `make demo` first."""

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
    assert begun + rest == whole, "the batches of the resumed run differ"
    print(f"{len(begun)} batches before and {len(rest)} after a restore equal the {len(whole)} batches of an uninterrupted run")
