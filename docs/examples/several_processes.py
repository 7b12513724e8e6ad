"""Run a fit that gives the same result on any number of processes.

``python -m docs.examples.several_processes --out picture.svg`` runs the fit in 1, then
2, then 4 child processes, prints the results and draws the picture of
docs/several-processes.md. ``--processes N`` replaces the 4.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from docs.examples.drawing import COLORS, INK, parser, settings, write
from jax_von_mises import log_prob, prob, sample_block, sample_von_mises, variance

__all__ = ["main"]

BLOCKS = 24
DIVISORS = tuple(
    n for n in range(1, BLOCKS + 1) if BLOCKS % n == 0
)  # numbers of processes among which the blocks divide evenly
ROWS = 2**17  # per block
TRUTH = np.array(
    [2.5, 0.8], np.float32
)  # mean direction of the wind over the day, and its swing
CONCENTRATION = 3.0
BINS = 72
STEPS = 12
TIMEOUT = 120.0  # seconds for all processes of a job, starting and compiling included
ROOT = Path(__file__).parents[2]


# ------------------------------------------------------------------------------------------------
# the work


def hours(start, rows):
    """Return the hours of `rows` positions in the stream as angles; a day is one turn."""
    return 2 * np.pi / 24 * (np.arange(start, start + rows) % 24).astype(np.float32)


def direction(parameters, hour):
    """Return the mean direction of the wind at an hour, turned by the sea breeze."""
    return parameters[0] + parameters[1] * jnp.cos(hour)


def draw(key, block):
    """Return the hours and directions of a block, independently of other blocks."""
    start = block * ROWS
    hour = hours(start, ROWS)
    return hour, sample_block(
        key, direction(TRUTH, hour), CONCENTRATION, start, (ROWS,)
    )


def draw_at_once(key):
    """Return the directions of all blocks from a single call."""
    hour = hours(0, BLOCKS * ROWS)
    return sample_von_mises(
        key, direction(TRUTH, hour), CONCENTRATION, hour.shape, method="table"
    )


def share(process, processes):
    """Return the blocks of process number `process`."""
    return range(BLOCKS * process // processes, BLOCKS * (process + 1) // processes)


def checksum(angles):
    """Return the CRC-32 of the bytes of the angles."""
    return zlib.crc32(np.ascontiguousarray(angles).view(np.uint8).data)


@jax.jit
def gradient(parameters, hour, directions):
    """Return the gradient of the log likelihood of one block with respect to the parameters."""

    def total(parameters):
        return jnp.sum(log_prob(directions, direction(parameters, hour), CONCENTRATION))

    return jax.grad(total)(parameters)


def information():
    """Return the diagonal of the Fisher information of all directions; its inverses are the variances of the fit."""
    return (
        CONCENTRATION
        * (1 - float(variance(CONCENTRATION)))
        * BLOCKS
        * ROWS
        * np.array([1.0, 0.5])
    )


def work(key, process, processes, gather):
    """Draw the blocks of one process; return checksums, counts and a fit from all processes."""
    blocks = [draw(key, block) for block in share(process, processes)]
    checksums = gather(
        np.array([checksum(directions) for _, directions in blocks], np.uint32)
    )
    counts = gather(
        np.stack(
            [np.histogram(part, BINS, (-np.pi, np.pi))[0] for _, part in blocks]
        ).astype(np.int32)
    )
    parameters, totals = np.zeros(2, np.float32), []
    for _ in range(STEPS):
        own = np.stack([gradient(parameters, *block) for block in blocks])
        totals.append(gather(own).sum(axis=0))  # in the order of the blocks
        parameters = parameters + (totals[-1] / information()).astype(np.float32)
        if len(totals) == 1:
            sums = gather(own.sum(axis=0, keepdims=True)).sum(
                axis=0
            )  # for comparison: sums over processes of sums over blocks
    return {
        "checksums": checksums.tolist(),
        "counts": counts.tolist(),
        "gradient": totals[0].tolist(),
        "sums": sums.tolist(),
        "parameters": parameters.tolist(),
    }


# ------------------------------------------------------------------------------------------------
# a child


def join(coordinator, process, processes):
    """Connect to the other processes; return a function that gathers the rows of all processes, ordered by process."""
    jax.distributed.initialize(
        coordinator, processes, process, cluster_detection_method="deactivate"
    )
    mesh = jax.make_mesh((processes,), ("processes",), axis_types=(AxisType.Auto,))
    replicate = jax.jit(lambda rows: rows, out_shardings=NamedSharding(mesh, P()))

    def gather(rows):
        return np.asarray(
            replicate(
                jax.make_array_from_process_local_data(
                    NamedSharding(mesh, P("processes")), rows
                )
            )
        )

    return gather


def end_with_parent():
    """Exit as soon as the pipe closes, which means that the parent has ended."""
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os._exit(1)


def child(options):
    """Run a child process, which writes only its result to standard output."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # output of JAX's libraries goes to standard error
        gather = join(options.coordinator, options.process, options.processes)
        json.dump(
            work(jax.random.key(0), options.process, options.processes, gather), out
        )


# ------------------------------------------------------------------------------------------------
# the parent


def environment():
    """Return the environment of a child that uses the CPU, without proxies and without other settings of JAX."""
    unwanted = ("JAX_", "XLA_", "TF_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(unwanted) and not name.lower().endswith("_proxy")
    }
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return kept | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}


def free_port():
    """Return an unused port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(commands, timeout=TIMEOUT):
    """Run commands concurrently and return their outputs; end all if one fails or the time is up."""
    deadline = time.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        outs, errors = (
            [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]
            for _ in range(2)
        )
        processes = []
        stack.callback(end, processes)
        for command, out, error in zip(commands, outs, errors, strict=True):
            # Nothing is written to this pipe. It closes when the parent ends; the child
            # then exits.
            processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=error,
                    env=environment(),
                )
            )
        while None in (codes := [process.poll() for process in processes]) and not any(
            codes
        ):
            if time.monotonic() > deadline:
                output = "".join(
                    text(error)
                    for code, error in zip(codes, errors, strict=True)
                    if code is None
                )
                raise TimeoutError(
                    f"{codes.count(None)} of {len(codes)} processes did not end within {timeout:g} s\n{output}"
                )
            time.sleep(0.02)
        for number, code in enumerate(codes):
            if code:
                raise RuntimeError(
                    f"process {number} ended with exit code {code}:\n{text(errors[number])}"
                )
        return [text(out) for out in outs]


def end(processes):
    """End the processes that are still running."""
    for process in processes:
        process.kill()
        process.wait()
        process.stdin.close()


def text(file):
    """Return the contents of a file."""
    file.seek(0)
    return file.read().decode(errors="replace")


def together(processes):
    """Run the work in child processes and return their common result."""
    command = [
        sys.executable,
        "-m",
        "docs.examples.several_processes",
        "--processes",
        str(processes),
    ]
    command += ["--coordinator", f"127.0.0.1:{free_port()}"]
    results = [
        json.loads(out)
        for out in launch([[*command, "--process", str(i)] for i in range(processes)])
    ]
    if any(other != results[0] for other in results):
        raise RuntimeError("the results of the processes differ")
    return results[0]


def table(alone, results):
    """Return the lines of the table, with the result for each number of processes."""
    lines = [
        f"{BLOCKS * ROWS:,} directions in {BLOCKS} blocks; drawn by one call, checksum {combined(alone)}",
        "",
        f"{'':31}first gradient, adding  fit",
        f"{'processes':11}{'checksum':10}{'same bits':10}{'blocks':>10}{'processes':>12}  mean direction       swing",
    ]
    for processes, result in results.items():
        same = "yes" if result["checksums"] == alone else "NO"
        lines.append(
            f"{processes:<11}{combined(result['checksums']):10}{same:10}{result['gradient'][0]:10.2f}"
            f"{result['sums'][0]:12.2f}{numbers(result['parameters'])}"
        )
    same = (
        len({json.dumps(result | {"sums": None}) for result in results.values()}) == 1
    )
    lines.append(f"{'truth':53}{numbers(TRUTH)}")
    lines.append(f"{'standard error':53}{numbers(information() ** -0.5)}")
    lines += [
        "",
        f"checksums, counts, gradient of the blocks and fit are the same: {'yes' if same else 'NO'}",
    ]
    return lines


def combined(checksums):
    """Return one checksum of the checksums of all blocks."""
    return f"{zlib.crc32(np.array(checksums, np.uint32).tobytes()):08x}"


def numbers(parameters):
    """Return both parameters as text, with the digits that distinguish neighbouring float32 numbers."""
    return f"{parameters[0]:16.9f}{parameters[1]:12.9f}"


def marginal(directions):
    """Return the density of a direction, averaged over the hours."""
    return jnp.mean(
        prob(directions[:, None], direction(TRUTH, hours(0, 24))[None], CONCENTRATION),
        axis=1,
    )


def picture(results):
    """Return the figure: above, the part of the stream that each process draws; below, the histogram."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(1, 1.6))
    million = ROWS / 1e6
    for row, processes in enumerate(results):
        for process in range(processes):
            blocks = share(process, processes)
            colour = COLORS[process % len(COLORS)]
            above.barh(
                row,
                len(blocks) * million,
                0.72,
                blocks.start * million,
                color=colour,
                edgecolor="white",
            )
            middle = (blocks.start + blocks.stop) / 2 * million
            name = f"process {process}" if processes <= 6 else process
            above.text(
                middle,
                row,
                name,
                ha="center",
                va="center",
                color="white",
                fontweight="bold",
            )
    above.set_yticks(
        range(len(results)), [f"{n} process" + "es" * (n > 1) for n in results]
    )
    above.invert_yaxis()
    above.tick_params(axis="y", length=0)
    above.spines["left"].set_visible(False)
    above.set(xlim=(0, BLOCKS * million), xlabel="position in the stream, millions")
    above.set(title="Process that draws each part")

    edges = np.degrees(np.linspace(-np.pi, np.pi, BINS + 1))
    largest = max(results)
    counts = np.array(results[largest]["counts"]) / (BLOCKS * ROWS * 2 * np.pi / BINS)
    floor = np.zeros(BINS)
    for process in range(largest):
        heights = counts[share(process, largest)].sum(axis=0)
        below.bar(
            edges[:-1], heights, np.diff(edges), floor, align="edge", color=COLORS[process % len(COLORS)],
            edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        floor += heights
    grid = np.linspace(-np.pi, np.pi, 361).astype(np.float32)
    below.plot(
        np.degrees(grid),
        marginal(grid),
        color=INK,
        linewidth=1.8,
        label="density, averaged over the hours",
    )
    below.set(
        xlim=(-180, 180), xticks=range(-180, 181, 45), ylim=(0, 1.1 * floor.max())
    )
    below.set(title=f"All directions, in the colours of {largest} processes")
    below.set(xlabel="direction of the wind, degrees", ylabel="density")
    below.legend(frameon=False, loc="upper left")
    return figure


def main(arguments=None):
    """Start the processes and print their results, or run one of the processes."""
    command_line = parser(__doc__)
    command_line.add_argument(
        "--processes", type=int, choices=DIVISORS, help="largest number of processes"
    )
    command_line.add_argument("--process", type=int, help=argparse.SUPPRESS)
    command_line.add_argument("--coordinator", help=argparse.SUPPRESS)
    options = command_line.parse_args(arguments)
    if options.process is not None:
        child(options)
        return
    largest = options.processes or (2 if options.quick else 4)
    results = {
        processes: together(processes)
        for processes in sorted({1, 2, largest} if largest > 2 else {1, largest})
    }
    with jax.default_device(
        jax.devices("cpu")[0]
    ):  # the device of the children, for the same rounding
        alone = [
            checksum(part)
            for part in np.split(np.asarray(draw_at_once(jax.random.key(0))), BLOCKS)
        ]
    print(*table(alone, results), sep="\n")
    if options.out:
        with settings():
            write(picture(results), options.out)


if __name__ == "__main__":
    main()
