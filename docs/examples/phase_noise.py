"""Study the phase error of a carrier loop: write a stream to disk, interrupt it, resume it, check it and read it back.

``python -m docs.examples.phase_noise --out picture.svg`` prints tables and draws the
picture of docs/phase-noise.md. The file of phases, 168 MB, is removed at the end;
``--data DIR`` keeps it in DIR, where a file of an earlier run is used again.
"""

import contextlib
import filecmp
import math
import tempfile
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr

from docs.examples.drawing import COLORS, GREY, INK, parser, settings, write
from jax_von_mises import (
    batched_apply,
    derive_key,
    icdf,
    initialize_compilation_cache,
    prob,
    sample_batches,
    sf,
    verify_samples,
    write_samples,
)

__all__ = ["main"]

LOOP_DB = np.array(
    [8.0, 10.0, 12.0, 14.0, 16.0]
)  # signal-to-noise ratios of the loop, one per column of the file
SYMBOL_DB = np.array([10.0, 13.0])  # of the symbols, Es/N0
ROWS = 2**23
BLOCKS = 16
EDGE = np.float32(
    np.pi / 4
)  # a QPSK symbol that is turned further is in the next quadrant
SIZES = (np.pi / 32 * np.arange(1, 32)).astype(
    np.float32
)  # of phase errors, for the picture; EDGE is among them
EDGE_PLACE = 7
PART = 2**13  # rows that are summed together when the file is read
RARE_DB = 17.5  # where one phase in 10^8 is beyond EDGE
RARE = 2**32
BATCH = 2**22
BLUES = ("#9ECAE1", "#6BAED6", "#4292C6", "#0072B2", "#08306B")


def ratio(decibels):
    """Convert decibels to a ratio of powers."""
    return np.float32(10 ** (np.asarray(decibels) / 10))


# ------------------------------------------------------------------------------------------------
# the exact rates


@jax.jit
def symbol_error(phase, snr):
    """Return the probability that a QPSK symbol with phase error `phase` leaves its quadrant."""
    # Distances from the two edges, in standard deviations of the noise.
    first = jnp.sqrt(2 * snr) * jnp.cos(phase + EDGE)
    second = jnp.sqrt(2 * snr) * jnp.sin(phase + EDGE)
    over_first, over_second = ndtr(-first), ndtr(-second)
    return over_first + over_second - over_first * over_second


def exact_without_noise(loop_snr, angle=EDGE):
    """Return the probability that the phase error exceeds `angle` in absolute value."""
    return 2 * np.asarray(sf(angle, 0.0, loop_snr), float)


def exact_with_noise(loop_snr, snr, points=8192):
    """Return the mean of `symbol_error` over the phase, by a quadrature that is accurate for periodic functions."""
    phase = (2 * np.pi * ((np.arange(points) + 0.5) / points - 0.5)).astype(np.float32)
    density = np.asarray(prob(phase, 0.0, loop_snr), float)
    return float(
        np.mean(density * np.asarray(symbol_error(phase, snr), float)) * 2 * np.pi
    )


# ------------------------------------------------------------------------------------------------
# the file


class Interrupted(Exception):
    """Simulates an interruption, such as a crash, a full disk, or the time limit of a cluster job."""


def stop_half_way(done, total):
    """Interrupt the run halfway, as an accident would."""
    if done >= total // 2:
        raise Interrupted


def record(path, key, rows, progress=None):
    """Draw `rows` phase errors at each loop SNR into a file, or continue an unfinished file."""
    return write_samples(
        path,
        key,
        0.0,
        ratio(LOOP_DB),
        rows,
        block_rows=rows // BLOCKS,
        resume=True,
        progress=progress,
    )


def interrupt_and_resume(path, key, rows):
    """Interrupt the run and resume it; return the result and the memory of the second call."""
    with contextlib.suppress(Interrupted):
        record(path, key, rows, stop_half_way)
    with Memory() as memory:
        written = record(path, key, rows)
    verify_samples(path)
    return written, memory.most


def same_as_uninterrupted(path, key, rows):
    """Return whether the file has the same bytes as the file of an uninterrupted run."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        other = Path(folder) / path.name
        record(other, key, rows)
        return filecmp.cmp(path, other, shallow=False)


def tens(size):
    """Convert bytes to megabytes, rounded up to a multiple of ten because the process also does other work."""
    return 10 * math.ceil(size / 1e7)


class Memory:
    """Measure the peak memory in bytes that the process adds during a `with` block; None if unknown."""

    def __enter__(self):
        self._before, self._end = self._used(), threading.Event()
        self.most = None if self._before is None else 0
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._end.set()
        self._thread.join()

    def _look(self):
        while self.most is not None and not self._end.wait(0.002):
            self.most = max(self.most, self._used() - self._before)

    @staticmethod
    def _used():
        """Return the memory of the process in bytes, without mapped files; None except on Linux."""
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
        return None


# ------------------------------------------------------------------------------------------------
# read in batches


def summary(phases):
    """Return sums over the rows of `phases`: counts beyond `SIZES`, error probabilities and their squares."""
    size = jnp.abs(phases)
    beyond = lax.map(lambda angle: jnp.sum(size > angle, axis=0), SIZES)
    errors = jax.vmap(symbol_error, in_axes=(None, 0))(phases, ratio(SYMBOL_DB))
    return beyond, jnp.sum(errors, axis=1), jnp.sum(errors**2, axis=1)


def read(path):
    """Return the number of rows of a file and their `summary`, without holding the file in memory."""
    phases = np.load(path, mmap_mode="r")
    parts = phases.reshape(-1, PART, phases.shape[1])  # a view: nothing is read yet
    sums = batched_apply(jax.vmap(summary), parts, batch_size=8)
    return len(phases), [part.sum(axis=0, dtype=float) for part in sums]


def rates(rows, sums):
    """Return estimates and standard errors of the tail probabilities at `SIZES`, and of the error rates with noise."""
    beyond, errors, squares = (total / rows for total in sums)
    return (beyond, np.sqrt(beyond * (1 - beyond) / rows)), (
        errors,
        np.sqrt((squares - errors**2) / rows),
    )


# ------------------------------------------------------------------------------------------------
# without a file


def count_rare(key, loop_snr, total, batch=BATCH):
    """Count the phases beyond the edge among `total` draws, without storing them."""
    count = jnp.zeros((), int)
    for phases in sample_batches(
        key, 0.0, loop_snr, total, min(batch, total), donate=True
    ):
        count = count_beyond(count, phases)
    return int(count)


@jax.jit
def count_beyond(count, phases):
    """Return `count` plus the number of phases beyond the edge."""
    return count + jnp.sum(jnp.abs(phases) > EDGE)


def rate_by_uniform_numbers(loop_snr):
    """Return the rate beyond the edge if ``icdf`` maps float32 uniform numbers (multiples of 2^-23) to phases.

    At rates below one in ten thousand, only numbers within 2^-13 of 0 or 1 give phases
    beyond the edge.
    """
    steps = np.r_[0:1024, 2**23 - 1024 : 2**23]
    phases = icdf((steps / 2**23).astype(np.float32), 0.0, loop_snr)
    return np.sum(np.abs(np.asarray(phases)) > EDGE) / 2**23


# ------------------------------------------------------------------------------------------------
# table and picture


def table(rows, tails, noisy):
    """Return lines that compare estimates from the file with exact rates; "off by" is in standard errors."""
    lines = [
        f"{'':8}{'phase beyond 45 degrees':>40}   {f'symbol error rate, Es/N0 {SYMBOL_DB[-1]:.0f} dB':>40}",
        "loop SNR" + "   ".join(
            f"{'exact':>10}{estimate:>10}{'s.e.':>10}{'off by':>10}" for estimate in ("counted", "averaged")
        ),
    ]  # fmt: skip
    for column, decibels in enumerate(LOOP_DB):
        tail = exact_without_noise(ratio(decibels))
        error = exact_with_noise(ratio(decibels), ratio(SYMBOL_DB[-1]))
        groups = [
            compare(
                tail, tails[0][EDGE_PLACE, column], np.sqrt(tail * (1 - tail) / rows)
            ),
            compare(error, noisy[0][-1, column], noisy[1][-1, column]),
        ]
        lines.append(f"{decibels:5.0f} dB" + "   ".join(groups))
    return lines


def compare(exact, estimate, spread):
    """Return the four columns of one comparison as text."""
    return f"{exact:10.2e}{estimate:10.2e}{spread:10.1e}{(estimate - exact) / spread:+10.1f}"


def picture(rows, tails, noisy, rare):
    """Return the figure: rates of large phase errors and symbol error rates, as points from draws and exact lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)

    angles = np.linspace(0, np.pi, 200).astype(np.float32)[:-1]
    for column, (decibels, colour) in enumerate(zip(LOOP_DB, BLUES, strict=True)):
        left.plot(
            np.degrees(angles),
            exact_without_noise(ratio(decibels), angles),
            color=colour,
            linewidth=1.3,
        )
        estimate, spread = tails[0][:, column], tails[1][:, column]
        positive = estimate > 0
        points(
            left,
            np.degrees(SIZES[positive]),
            estimate[positive],
            spread[positive],
            colour,
            f"{decibels:.0f} dB",
        )
    left.axvline(45, color=INK, linewidth=1, linestyle=":")
    left.text(47, 0.9, "edge of the quadrant", fontsize=9, color=INK, va="center")
    left.axhline(1 / rows, color=GREY, linewidth=1)
    left.text(
        178,
        0.8 / rows,
        "one row of the file",
        ha="right",
        va="top",
        fontsize=9,
        color="#666666",
    )
    left.set(yscale="log", ylim=(1e-8, 2), xlim=(0, 180), xticks=range(0, 181, 45))
    left.set(
        title="Phase errors larger than x", xlabel="x, degrees", ylabel="probability"
    )
    left.legend(
        title="loop SNR; points drawn,\nlines exact",
        frameon=False,
        loc="upper right",
        borderaxespad=1.5,
    )

    loop = np.linspace(LOOP_DB[0] - 1, 24, 52)
    right.plot(loop, exact_without_noise(ratio(loop)), color=BLUES[3], linewidth=1.3)
    points(
        right,
        LOOP_DB,
        tails[0][EDGE_PLACE],
        tails[1][EDGE_PLACE],
        BLUES[3],
        "phase noise only",
    )
    for line, (decibels, colour) in enumerate(
        zip(SYMBOL_DB, (COLORS[0], COLORS[2]), strict=True)
    ):
        curve = [exact_with_noise(ratio(snr), ratio(decibels)) for snr in loop]
        right.plot(loop, curve, color=colour, linewidth=1.3)
        points(
            right,
            LOOP_DB,
            noisy[0][line],
            noisy[1][line],
            colour,
            f"Es/N0 {decibels:.0f} dB",
        )
        alone = float(symbol_error(np.float32(0), ratio(decibels)))
        right.axhline(alone, color=colour, linewidth=1, linestyle=":")
        right.text(
            loop[0] + 0.2,
            alone * 0.7,
            "perfect carrier",
            fontsize=8.5,
            color=colour,
            va="top",
        )
    count, total = rare
    if count:
        label = f"no noise, {count} of {total / 1e9:.1f} billion draws"
        points(
            right, [RARE_DB], [count / total], [np.sqrt(count) / total], INK, label, "D"
        )
    right.set(yscale="log", ylim=(1e-9, 1), xlim=(loop[0], loop[-1]))
    right.set(
        title="Symbol error rate of QPSK",
        xlabel="signal-to-noise ratio of the loop, dB",
        ylabel="error rate",
    )
    right.legend(frameon=False, fontsize=9, loc="upper right")
    return figure


def points(axes, x, y, spread, colour, label, marker="o"):
    """Draw estimates with their standard errors."""
    axes.errorbar(
        x,
        y,
        spread,
        fmt=marker,
        color=colour,
        markersize=4.5,
        linewidth=1.3,
        label=label,
    )


def main(arguments=None):
    """Write the file with an interruption, print its comparison with the exact rates, and draw the picture."""
    command_line = parser(__doc__)
    command_line.add_argument(
        "--data", type=Path, help="directory in which the file is kept"
    )
    options = command_line.parse_args(arguments)
    initialize_compilation_cache()  # later runs start faster
    rows, rare = (ROWS // 8, RARE // 64) if options.quick else (ROWS, RARE)
    key = jax.random.key(0)
    with contextlib.ExitStack() as stack:
        folder = options.data or Path(
            stack.enter_context(tempfile.TemporaryDirectory())
        )
        folder.mkdir(parents=True, exist_ok=True)
        path, phases_key = folder / "phases.npy", derive_key(key, "phases")
        written, writing = interrupt_and_resume(path, phases_key, rows)
        same = same_as_uninterrupted(path, phases_key, rows)
        with Memory() as reading:
            _, sums = read(path)
        megabytes = path.stat().st_size / 1e6
    print(
        f"{rows:,} rows of {len(LOOP_DB)} phases, {megabytes:.0f} MB in {BLOCKS} blocks"
    )
    print(
        f"interrupted halfway; the second call kept {written.kept} blocks and drew {written.drawn}"
    )
    print(f"same bytes as an uninterrupted run: {'yes' if same else 'NO'}")
    if writing is not None:
        print(
            f"additional memory: under {tens(writing)} MB for writing, under {tens(reading.most)} MB for reading"
        )
    tails, noisy = rates(rows, sums)
    print("", *table(rows, tails, noisy), "", sep="\n")

    loop_snr = ratio(RARE_DB)
    count = count_rare(derive_key(key, "rare"), loop_snr, rare)
    exact = exact_without_noise(loop_snr)
    print(
        f"loop SNR {RARE_DB} dB, {rare:,} phases without a file: {count} beyond 45 degrees"
    )
    print(
        f"  rate {count / rare:.2e}, exact {exact:.2e}, s.e. {np.sqrt(exact / rare):.1e}"
    )
    print(
        f"  by icdf of float32 uniform numbers: {rate_by_uniform_numbers(loop_snr):.2e}"
    )
    if options.out:
        with settings():
            write(picture(rows, tails, noisy, (count, rare)), options.out)


if __name__ == "__main__":
    main()
