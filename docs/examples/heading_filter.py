"""Track the heading of a vehicle with a particle filter on the circle, in one compiled scan.

``python -m docs.examples.heading_filter --out picture.svg`` prints the table and draws
the picture of docs/heading-filter.md. The exact filter is a density on a grid.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import jax_von_mises as jvm
from docs.examples.drawing import COLORS, GREY, INK, draw, near, parser, table

MOTION = 150.0  # concentration of the gyro's error in one step, about 5 degrees
COMPASS = 8.0  # concentration of a good reading, about 20 degrees
WRONG = 0.2  # fraction of the readings that are uniform on the circle
OUTAGE = slice(50, 90)  # steps without a compass
# The turns in radians that the gyro measures, and the concentrations of the readings.
TURNS = 0.06 + 0.12 * np.sin(np.arange(120, dtype=np.float32) * (2 * np.pi / 50))
READINGS = np.full_like(TURNS, COMPASS)
READINGS[OUTAGE] = 0.0
GRID = np.linspace(-np.pi, np.pi, 512, endpoint=False, dtype=np.float32)
WIDTH = 2 * np.pi / len(GRID)


def reading_distribution(heading, concentration):
    """Return the distribution of a reading, which is good or an outlier."""
    anywhere = jnp.zeros_like(heading)
    loc = jnp.stack([heading, anywhere], axis=-1)
    concentration = jnp.stack([concentration + anywhere, anywhere], axis=-1)
    parts = jvm.VonMises(loc, concentration)
    return jvm.Mixture(probs=jnp.array([1 - WRONG, WRONG]), components=parts)


@jax.jit
def simulate(key):
    """Simulate one run; return true headings, not reduced to one turn, and readings."""
    start, motion, needle = jax.random.split(key, 3)
    first = jax.random.uniform(start, minval=-jnp.pi, maxval=jnp.pi)
    headings = first + jnp.cumsum(jvm.sample_von_mises(motion, TURNS, MOTION))
    return headings, reading_distribution(headings, READINGS).sample(needle)


def mean_direction(angles, weights):
    """Return the direction of the weighted mean of unit vectors."""
    return jnp.angle(jnp.sum(weights * jnp.exp(1j * angles)))


def systematic(offset, weights):
    """Return the indices of the particles to copy, chosen by systematic resampling."""
    size = weights.shape[0]
    teeth = (jnp.arange(size, dtype=weights.dtype) + offset) / size
    return jnp.minimum(jnp.searchsorted(jnp.cumsum(weights), teeth), size - 1)


@functools.partial(jax.jit, static_argnames="size")
def particle_filter(key, turns, readings, concentrations, size):
    """Return estimates (steps,) and particles (steps, size) of the heading after each reading."""
    comb, noise = jax.random.split(key)

    def step(cloud, now):
        block, offset, turn, reading, concentration = now
        moved = jvm.sample_block(noise, cloud + turn, MOTION, block * size, (size,))
        # The density is even in the difference, so either angle can be its centre.
        readable = reading_distribution(reading, concentration)
        weights = jax.nn.softmax(readable.log_prob(moved))
        cloud = moved[systematic(offset, weights)]
        return cloud, (mean_direction(moved, weights), cloud)

    streams = jnp.arange(turns.size), jax.random.uniform(comb, turns.shape)
    cloud = jnp.linspace(-jnp.pi, jnp.pi, size, endpoint=False)
    return jax.lax.scan(step, cloud, (*streams, turns, readings, concentrations))[1]


@jax.jit
def grid_filter(turns, readings, concentrations):
    """Return estimates (steps,) and posterior densities (steps, cells) after each reading, exact up to rounding."""

    def step(density, now):
        turn, reading, concentration = now
        kernel = jvm.prob(GRID + jnp.pi, turn, MOTION) * WIDTH
        waves = jnp.fft.rfft(density) * jnp.fft.rfft(kernel)
        moved = jnp.maximum(jnp.fft.irfft(waves, len(GRID)), 0)
        density = moved * reading_distribution(reading, concentration).prob(GRID)
        density = density / (jnp.sum(density) * WIDTH)
        return density, (mean_direction(GRID, density), density)

    start = jnp.full_like(GRID, 1 / (2 * jnp.pi))
    return jax.lax.scan(step, start, (turns, readings, concentrations))[1]


def run(key, sizes):
    """Simulate one run; return the errors of all methods after each step, the headings and the last two results."""
    headings, readings = simulate(jax.random.fold_in(key, 0))
    given = TURNS, readings, READINGS
    found = [(readings.at[OUTAGE].set(readings[OUTAGE.start - 1]), None)]
    found += [particle_filter(key, *given, size) for size in sizes]
    found += [grid_filter(*given)]
    return [near(each - headings, 0) for each, _ in found], headings, found[-2:]


def cell(values, digits=2):
    """Return the mean over runs and steps with its standard error from the means of the independent runs."""
    means = np.mean(values, axis=1)
    error = means.std(ddof=1) / np.sqrt(means.size)
    return f"{means.mean():.{digits}f} ± {error:.{digits}f}"


def picture(size):
    """Return the figure: headings over time, and the posterior after the first reading after the outage."""
    from matplotlib.figure import Figure

    shown = jax.tree.map(np.asarray, run(jax.random.key(41), (size,)))
    _, headings, ((estimate, cloud), (_, density)) = shown
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.9, 1))
    centre = np.unwrap(estimate)
    ends = np.quantile(near(cloud, centre[:, None]), (0.05, 0.95), axis=1)
    left.axvspan(OUTAGE.start, OUTAGE.stop, color=GREY, alpha=0.3, linewidth=0)
    left.fill_between(range(len(TURNS)), *np.degrees(ends), color=COLORS[4])
    left.plot(np.degrees(centre), color=COLORS[1], label="particles, with 90% band")
    left.plot(np.degrees(near(headings, centre)), "--", color=INK, label="truth")
    left.set(xlabel="step", ylabel="degrees", title="Heading over time")
    right.hist(np.degrees(cloud[OUTAGE.stop]), 48, density=True, color=COLORS[4])
    right.plot(np.degrees(GRID), np.radians(density[OUTAGE.stop]), color=COLORS[2])
    right.set(xlabel="degrees", yticks=[], title=f"Posterior at step {OUTAGE.stop}")
    left.legend()
    return figure


def main(arguments=None):
    """Compare the filters over many runs, print the table and draw one run."""
    options = parser(__doc__).parse_args(arguments)
    runs, sizes = (32, (512,)) if options.quick else (200, (64, 512, 4096))
    names = ["compass alone", *map("{} particles".format, sizes), "exact, on a grid"]
    many = jax.jit(jax.vmap(lambda key: run(key, sizes)[0]))
    found = np.asarray(many(jax.random.split(jax.random.key(0), runs)), float)
    rows = []
    for name, miss in zip(names, found, strict=True):
        parts = [np.degrees(abs(miss[:, at])) for at in (READINGS > 0, OUTAGE)]
        loss = np.cos(found[-1]) - np.cos(miss)
        rows.append([name, *map(cell, parts), cell(loss, 5)])
    print(table(["", "with compass", "in the outage", "additional loss"], rows))
    draw(options.out, picture, sizes[-1])


if __name__ == "__main__":
    main()
