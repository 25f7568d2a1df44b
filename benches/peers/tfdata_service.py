"""tf.data service: the pipeline of tfdata.py on a dispatcher and a worker, processes of their own on the same cores.

- https://www.tensorflow.org/api_docs/python/tf/data/experimental/service: the two servers, and `distribute` as the last
  step before prefetch; DYNAMIC sharding is the one that visits every row once.
- `compression`: "AUTO" is the default, None is what the page on `distribute` offers where the network is not the limit.

Called with `--variant dispatcher` or `--variant worker` this is the server; both are up before the clock starts.
"""

import contextlib
import subprocess
import sys

import shared
import tensorflow as tf
import tfdata

service = tf.data.experimental.service


def serve(role):
    """A server that prints its address and runs until its standard input ends."""
    if role == "dispatcher":
        server = service.DispatchServer()
        print(server.target, flush=True)
    else:
        dispatcher = sys.stdin.readline().strip()
        server = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.removeprefix("grpc://")))
        print("up", flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def server(role, *lines):
    """A server process: what it printed first. It is stopped at the end."""
    command = [sys.executable, __file__, *sys.argv[1:], "--variant", role]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for line in lines:
            print(line, file=process.stdin, flush=True)
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def main():
    given = shared.arguments()
    if given.variant in ("dispatcher", "worker"):
        return serve(given.variant)
    compression = None if given.variant == "none" else "AUTO"
    with server("dispatcher") as target, server("worker", target):
        # The thread pool of the options is the worker's: the options are a part of the graph that it runs.
        images = tfdata.threads(tfdata.photographs(given), given.cores)
        distribute = service.distribute(service.ShardingPolicy.DYNAMIC, target, compression=compression)
        dataset = images.apply(distribute).prefetch(tf.data.AUTOTUNE)
        shared.measure(given, tfdata.VERSION, lambda epoch: (images for images, _ in dataset))


if __name__ == "__main__":
    main()
