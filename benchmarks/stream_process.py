"""A process that draws one stream, or its share of one, and tells when it did what and what memory it held.

``python -m benchmarks.stream_process`` is started by `benchmarks.streaming`, which gives its order as JSON. It makes
itself ready, says so, and begins when it is told to: so start-up and compiling are timed apart from the work, and
several processes begin together. A process of its own also holds no memory that earlier work has left.
"""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["Failed", "run"]

ROOT = Path(__file__).parents[1]
INTERVAL = 0.05  # seconds between two looks at the memory


class Failed(RuntimeError):
    """A process ended before it had done its work."""


def run(orders, clock=time.time):
    """Run a process for each of `orders`; end them all if one fails or this one is interrupted.

    Returns
    -------
    reports : list of dict
        What each process tells, its times counted in seconds from when it was started (``imported``, ``compiled``) or
        from when it was told to begin (``written``, after its last block, and ``finished``).
    """
    with contextlib.ExitStack() as stack:
        started, processes = [], []
        for order in orders:
            started.append(clock())
            command = [sys.executable, "-m", "benchmarks.stream_process", json.dumps(order)]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(stack.enter_context(ended(process)))
        ready = [heard(process) for process in processes]
        told = clock()
        for process in processes:
            process.stdin.write("begin\n")
            process.stdin.flush()
        done = [heard(process) for process in processes]
    reports = []
    for start, first, second in zip(started, ready, done, strict=True):
        from_start = {name: at - start for name, at in first.items()}
        from_begin = {name: at - told for name, at in second.pop("times").items()}
        reports.append({**from_start, **from_begin, **second})
    return reports


@contextlib.contextmanager
def ended(process):
    """See that a process has ended afterwards, whatever happens, before its files are removed."""
    try:
        yield process
    except BaseException:
        process.terminate()
        raise
    finally:
        with process:  # closes its pipes and waits
            pass


def heard(process):
    """The next line that a process says."""
    line = process.stdout.readline()
    if not line:
        raise Failed(f"a process of the benchmark ended with code {process.wait()}; what it said stands above")
    return json.loads(line)


def tell(message):
    """Say something to who started this process."""
    print(json.dumps(message), flush=True)


def main(order):
    """Do what `order` says, a dict: kind, path, total, block, part, parts, seed, trace."""
    import jax

    from benchmarks import memory, stream_cases

    kind, total, block = order["kind"], order["total"], order["block"]
    if kind == "zarr":
        stream_cases.storage()  # TensorStore is loaded here and not at the first block
    imported = time.time()
    key = jax.random.key(order["seed"])
    # Three batches: the third is drawn into the memory of the first, by another program.
    stream_cases.draws(3 * block, block, kind != "prefetch")(key)
    tell({"imported": imported, "compiled": time.time()})
    if not sys.stdin.readline():
        return 1  # who started this process is gone
    written = []
    watch = memory.Trace(INTERVAL) if order["trace"] else contextlib.nullcontext()
    with watch:
        if kind == "prefetch":
            with stream_cases.jvm.prefetch_to_host(stream_cases.batches(key, total, block)) as source:
                for values in source:
                    stream_cases.idle(values)
        else:
            stream_cases.jvm.write_samples(
                order["path"],
                key,
                stream_cases.LOC,
                stream_cases.CONCENTRATION,
                total,
                stream_cases.DTYPE,
                block_rows=block,
                part=order["part"],
                parts=order["parts"],
                progress=lambda done, rows: written.append(time.time()),
            )
    finished = time.time()
    report = {"times": {"written": written[-1] if written else finished, "finished": finished}}
    if order["trace"]:
        report |= {"trace": watch.points, "growth": watch.growth()}
    tell(report)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(json.loads(sys.argv[1])))
    except KeyboardInterrupt:
        sys.exit(130)  # who started this process says so
