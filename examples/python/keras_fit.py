"""Keras: `model.fit` with a job as a tf.data.Dataset, and the position of the job after each epoch. Run `make demo` first."""

import feedline
import feedline.tensorflow
import keras


def main() -> None:
    with feedline.open("examples/demo.yaml", batch_size=50) as job:
        steps = len(job)
        dataset = feedline.tensorflow.dataset(job).map(lambda batch: (batch["image"], batch["label"] % 1000))
        model = keras.Sequential(
            [keras.Input((224, 224, 3)), keras.layers.Rescaling(1 / 255), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1000)]
        )
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        states = []
        save_state = keras.callbacks.LambdaCallback(
            # Keras prefetches batches, so the step is passed explicitly.
            on_epoch_end=lambda epoch, _: states.append(job.state_dict(at=(epoch + 1) * steps))
        )
        model.fit(dataset, epochs=2, callbacks=[save_state], verbose=0)
    positions = [(state["epoch"], state["step"]) for state in states]
    assert positions == [(1, 0), (2, 0)], positions
    print(f"2 epochs of {steps} steps; positions (epoch, step) after them: {positions}")


if __name__ == "__main__":
    main()
