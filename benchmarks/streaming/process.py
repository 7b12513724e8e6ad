"""Draw one stream in a new process, which holds no memory of earlier work, and report how much memory it needs."""

import json
import subprocess
import sys
from pathlib import Path

__all__ = ["KINDS", "Failed", "run"]

ROOT = Path(__file__).parents[2]
INTERVAL = 0.05  # seconds between two readings of the memory
KINDS = {
    "npy": "write_samples to .npy",
    "zarr": "write_samples to Zarr",
    "prefetch": "prefetch_to_host",
    "save": "draw all, then numpy.save",
}


class Failed(RuntimeError):
    """The process ended before it had finished the stream."""


def run(kind, path, total, block):
    """Draw `total` angles in blocks of `block` in a new process, which is killed if this one is interrupted.

    Returns
    -------
    dict
        ``"growth"`` in bytes, and ``"trace"`` with the points of `benchmarks.memory.Trace`.
    """
    order = json.dumps([kind, str(path), total, block])
    command = [sys.executable, "-m", "benchmarks.streaming.process", order]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise Failed(f"the process that draws for {kind!r} ended with code {done.returncode}; see its message above")
    return json.loads(done.stdout.splitlines()[-1])


def main(kind, path, total, block):
    """Draw the stream; print the report as JSON."""
    import jax

    from benchmarks import memory
    from benchmarks.streaming import cases

    key = jax.random.key(0)
    if kind == "zarr":
        cases.missing_storage()  # loads zarr-python before the trace begins
    if kind != "save":
        # Compile first. A donated stream uses a second program from its third batch on.
        cases.draws(3 * block, block, kind != "prefetch")(key)
    with memory.Trace(INTERVAL) as watch:
        if kind == "prefetch":
            cases.prefetched(key, total, block)
        elif kind == "save":
            cases.save((path, key), total)
        else:
            cases.write((path, key), total, block)
    print(json.dumps({"growth": watch.growth(), "trace": watch.points}))


if __name__ == "__main__":
    try:
        main(*json.loads(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)  # the parent process prints the message
