"""tf.data service: the pipeline of tfdata.py on a dispatcher and a worker, as separate processes on the same cores.

- https://www.tensorflow.org/api_docs/python/tf/data/experimental/service: the two servers, and `distribute` as the last
  step before prefetch; DYNAMIC sharding visits every row once.
- `compression`: "AUTO" is the default; the documentation of `distribute` offers None for fast networks.

With `--variant dispatcher` or `--variant worker`, this script is the server. Both servers run before the clock starts.
"""

import contextlib
import subprocess
import sys

import shared
import tensorflow as tf
import tfdata

service = tf.data.experimental.service


def serve(role):
    """Runs a server that prints its address and exits when its standard input closes."""
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
    """Starts a server process and yields its first output. Stops it at the end."""
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
        # The options are part of the graph, so their thread pool is in the worker.
        images = tfdata.threads(tfdata.photographs(given), given.cores)
        distribute = service.distribute(service.ShardingPolicy.DYNAMIC, target, compression=compression)
        dataset = images.apply(distribute).prefetch(tf.data.AUTOTUNE)
        shared.measure(given, tfdata.VERSION, lambda epoch: (images for images, _ in dataset))


if __name__ == "__main__":
    main()
