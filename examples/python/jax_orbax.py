"""JAX: global arrays over a mesh of devices, and the position of the job in an Orbax checkpoint. Run `make demo` first."""

import tempfile
from pathlib import Path

import feedline
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@jax.jit
def step(weights: jax.Array, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss(weights: jax.Array) -> jax.Array:
        means = images.astype(jnp.float32).mean(axis=(1, 2)) / 255
        logits = jax.nn.log_softmax(means @ weights)
        return -jnp.take_along_axis(logits, (labels % 1000)[:, None], axis=1).mean()

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


def train(folder: Path, load: bool, stop_after: int | None) -> list[float]:
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    weights, losses = jnp.zeros((3, 1000)), []
    with ocp.CheckpointManager(folder) as checkpoints, feedline.open("examples/demo.yaml", batch_size=50, epochs=1) as job:
        if load:
            latest = checkpoints.latest_step()
            kinds = ocp.args.Composite(weights=ocp.args.StandardRestore({"w": weights}), data=ocp.args.JsonRestore())
            saved = checkpoints.restore(latest, args=kinds)
            weights = saved["weights"]["w"]
            job.load_state_dict(saved["data"])
        for batch in job.jax(sharding):
            weights, value = step(weights, batch["image"], batch["label"])
            losses.append(float(value))
            if len(losses) == stop_after:
                kinds = ocp.args.Composite(weights=ocp.args.StandardSave({"w": weights}), data=ocp.args.JsonSave(job.state_dict()))
                checkpoints.save(len(losses), args=kinds)
                break
    return losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        whole = train(Path(name) / "whole", load=False, stop_after=None)
        begun = train(Path(name) / "parts", load=False, stop_after=3)
        rest = train(Path(name) / "parts", load=True, stop_after=None)
    assert begun + rest == whole, "the losses of the resumed run differ"
    print(f"a run with a checkpoint after 3 steps has the losses of an uninterrupted run of {len(whole)} steps")
