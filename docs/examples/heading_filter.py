"""Track the heading of a vehicle with a particle filter on the circle, in one compiled scan.

``python -m docs.examples.heading_filter --out FILE`` prints the table and draws the
picture of docs/heading-filter.md. Another run on the same machine gives the same file,
byte for byte.

A gyro measures the turns of a vehicle with a small error, and a compass measures its
heading with a larger error. Some readings are outliers, and for a while there are no
readings. The state is one angle, so the exact filter can be computed too, as a density
on a grid.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from docs.examples.drawing import COLORS, INK, parser, settings, write
from jax_von_mises import (
    Mixture,
    VonMises,
    initialize_compilation_cache,
    prob,
    sample_block,
    sample_von_mises,
)

__all__ = ["main"]

STEPS = 120
MOTION = 150.0  # concentration of the gyro's error in one step, about 5 degrees
COMPASS = 8.0  # concentration of a good reading, about 20 degrees
WRONG = 0.2  # fraction of the readings that are uniform on the circle
OUTAGE = (50, 90)  # steps without a compass
PARTICLES = 4096
CELLS = 512  # of the grid, seven per standard deviation of the gyro's error
SHOWN = 728  # seed of the pictured run, ambiguous at the start and after the outage
RUNS = 200


# ------------------------------------------------------------------------------------------------
# the vehicle


def gyro():
    """Return the turn in radians that the gyro measures in each step; the total exceeds a full turn."""
    step = jnp.arange(STEPS, dtype=jnp.float32)
    return 0.06 + 0.12 * jnp.sin(step * (2 * jnp.pi / 50))


def compass():
    """Return the concentration of the compass at each step, 0 where there is no reading."""
    step = jnp.arange(STEPS)
    return jnp.where(
        (step >= OUTAGE[0]) & (step < OUTAGE[1]), jnp.zeros(STEPS), COMPASS
    )


def reading_distribution(heading, concentration):
    """Return the distribution of a reading, which is good or an outlier."""
    anywhere = jnp.zeros_like(heading)
    loc = jnp.stack([heading, anywhere], axis=-1)
    concentration = jnp.stack(
        [jnp.broadcast_to(concentration, heading.shape), anywhere], axis=-1
    )
    return Mixture(
        probs=jnp.array([1 - WRONG, WRONG]), components=VonMises(loc, concentration)
    )


@jax.jit
def simulate(key, turns, concentrations):
    """Simulate one run; return true headings, not reduced to one turn, and readings."""
    start, motion, needle = random.split(key, 3)
    first = random.uniform(start, minval=-jnp.pi, maxval=jnp.pi)
    headings = first + jnp.cumsum(sample_von_mises(motion, turns, MOTION))
    return headings, reading_distribution(headings, concentrations).sample(needle)


# ------------------------------------------------------------------------------------------------
# the filters


def grid(cells=CELLS):
    """Return evenly spaced angles, for densities and for the first particles."""
    return jnp.linspace(-jnp.pi, jnp.pi, cells, endpoint=False)


def mean_direction(angles, weights):
    """Return the direction of the weighted mean of unit vectors along the last axis."""
    return jnp.arctan2(
        jnp.sum(weights * jnp.sin(angles), axis=-1),
        jnp.sum(weights * jnp.cos(angles), axis=-1),
    )


def systematic(offset, weights):
    """Return the indices of the particles to copy, chosen by systematic resampling."""
    size = weights.shape[0]
    teeth = (jnp.arange(size, dtype=weights.dtype) + offset) / size
    return jnp.minimum(jnp.searchsorted(jnp.cumsum(weights), teeth), size - 1)


@functools.partial(jax.jit, static_argnames="particles")
def particle_filter(key, turns, readings, concentrations, particles=PARTICLES):
    """Return estimates (steps,) and particles (steps, particles) of the heading after each reading."""
    comb, noise = random.split(key)

    def step(cloud, now):
        block, turn, reading, concentration, offset = now
        moved = sample_block(
            noise, cloud + turn, MOTION, block * particles, (particles,)
        )
        # The density depends on the difference between reading and heading, so either can
        # be the centre.
        weights = jax.nn.softmax(
            reading_distribution(reading, concentration).log_prob(moved)
        )
        cloud = moved[systematic(offset, weights)]
        return cloud, (mean_direction(moved, weights), cloud)

    inputs = (
        jnp.arange(turns.size),
        turns,
        readings,
        concentrations,
        random.uniform(comb, turns.shape),
    )
    return jax.lax.scan(step, grid(particles), inputs)[1]


@functools.partial(jax.jit, static_argnames="cells")
def grid_filter(turns, readings, concentrations, cells=CELLS):
    """Return estimates (steps,) and posterior densities (steps, cells) after each reading, exact up to rounding.

    Motion is a convolution on the circle. A sum over a full turn equals the integral up
    to rounding, because the density is smooth and periodic.
    """
    angles, width = grid(cells), 2 * jnp.pi / cells

    def step(density, now):
        turn, reading, concentration = now
        kernel = prob(angles + jnp.pi, turn, MOTION) * width
        moved = jnp.maximum(
            jnp.fft.irfft(jnp.fft.rfft(density) * jnp.fft.rfft(kernel), cells), 0
        )
        density = moved * reading_distribution(reading, concentration).prob(angles)
        density = density / (jnp.sum(density) * width)
        return density, (mean_direction(angles, density), density)

    anywhere = jnp.full(cells, 1 / (2 * jnp.pi))
    return jax.lax.scan(step, anywhere, (turns, readings, concentrations))[1]


def last_reading(readings, concentrations):
    """Return the compass readings, replaced during the outage by the last one before it."""
    step = jnp.arange(readings.size)
    return readings[jax.lax.cummax(jnp.where(concentrations > 0, step, 0))]


# ------------------------------------------------------------------------------------------------
# the comparison


def difference(angles, others):
    """Return `angles` minus `others`, in [-pi, pi]."""
    return jnp.arctan2(jnp.sin(angles - others), jnp.cos(angles - others))


def deviations(key, sizes):
    """Simulate one run and return the errors of compass, particles and grid after each step."""
    turns, concentrations = gyro(), compass()
    simulating, filtering = random.split(key)
    headings, readings = simulate(simulating, turns, concentrations)
    estimates = [last_reading(readings, concentrations)]
    estimates += [
        particle_filter(filtering, turns, readings, concentrations, size)[0]
        for size in sizes
    ]
    estimates += [grid_filter(turns, readings, concentrations)[0]]
    return [difference(estimate, headings) for estimate in estimates]


def compare(key, runs, sizes):
    """Return the errors (runs, steps) of independent runs, in a dict by method."""
    names = [
        "compass alone",
        *(f"{size} particles" for size in sizes),
        "exact, on a grid",
    ]
    many = jax.jit(jax.vmap(functools.partial(deviations, sizes=sizes)))
    return dict(zip(names, many(random.split(key, runs)), strict=True))


def mean_and_error(values):
    """Return the mean over runs and steps, and its standard error from the means of the runs."""
    # The steps of one run are dependent; the runs are independent.
    means = np.mean(np.asarray(values, float), axis=1)
    return means.mean(), means.std(ddof=1) / np.sqrt(means.size)


def table(misses):
    """Return the lines of the table: mean errors with and without a compass, and the excess over the exact filter."""
    with_compass = np.asarray(compass()) > 0
    *_, exact = misses.values()
    runs, steps = exact.shape
    lines = [
        f"{runs} runs of {steps} steps, means ± standard errors",
        f"{'':18}{'error in degrees':^28}   {'1 - cos(error), more':>20}",
        f"{'':18}{'with compass':>14}{'in the outage':>14}   {'than the exact filter':>20}",
    ]
    for name, miss in misses.items():
        degrees = np.degrees(np.abs(miss))
        cells = [
            mean_and_error(degrees[:, chosen])
            for chosen in (with_compass, ~with_compass)
        ]
        line = f"{name:18}" + "".join(
            f"{mean:8.2f} ± {error:.2f}" for mean, error in cells
        )
        if miss is not exact:
            mean, error = mean_and_error(np.cos(exact) - np.cos(miss))
            line += f"   {mean:10.5f} ± {error:.5f}"
        lines.append(line)
    return lines


# ------------------------------------------------------------------------------------------------
# the picture


def second_peak(density):
    """Return the height of the second highest maximum of a density on a grid, relative to the highest."""
    peaks = density[(density > np.roll(density, 1)) & (density >= np.roll(density, -1))]
    return 0.0 if peaks.size < 2 else np.sort(peaks)[-2] / peaks.max()


def band(estimates, cloud, share=0.9):
    """Return the lower ends, centres and upper ends of bands that hold the central `share` of the particles.

    The estimates are unwrapped, so that the band has no jumps.
    """
    around = np.asarray(difference(cloud, estimates[:, None]), float)
    low, high = np.quantile(around, [(1 - share) / 2, (1 + share) / 2], axis=1)
    centre = np.unwrap(np.asarray(estimates, float))
    return centre + low, centre, centre + high


def moments_of_doubt(densities):
    """Return the steps with the highest second peak, one before and one after the outage."""
    heights = np.array([second_peak(density) for density in densities])
    return int(np.argmax(heights[: OUTAGE[0]])), OUTAGE[1] + int(
        np.argmax(heights[OUTAGE[1] :])
    )


def degree_ticks(axis):
    """Label the quarters of a turn in degrees."""
    ticks = np.arange(-180, 181, 90)
    axis.set_ticks(ticks, [f"{tick}°".replace("-", "−") for tick in ticks])


def picture(seed=SHOWN):
    """Return the figure: headings over time on the left, two ambiguous posteriors on the right."""
    from matplotlib.figure import Figure

    turns, concentrations = gyro(), compass()
    simulating, filtering = random.split(random.key(seed))
    headings, readings = simulate(simulating, turns, concentrations)
    estimates, cloud = (
        np.asarray(array)
        for array in particle_filter(filtering, turns, readings, concentrations)
    )
    densities = np.asarray(grid_filter(turns, readings, concentrations)[1], float)
    truth = np.asarray(difference(headings, 0.0), float)
    read = np.where(concentrations > 0, np.degrees(readings), np.nan)

    figure = Figure(figsize=(10, 5), facecolor="white", layout="constrained")
    panels = figure.subplot_mosaic(
        [["time", "a"], ["time", "b"]], width_ratios=(1.9, 1)
    )
    time, step = panels["time"], np.arange(STEPS)
    time.axvspan(OUTAGE[0] - 0.5, OUTAGE[1] - 0.5, color="#F0F0F0", linewidth=0)
    time.text(np.mean(OUTAGE) + 3, -20, "no compass", ha="center")
    low, centre, high = (np.degrees(ends) for ends in band(estimates, cloud))
    true = np.degrees(np.unwrap(truth))
    # Copies shifted by full turns, since the panel shows one turn.
    for turn in 360 * np.arange(-4, 5):
        filled = time.fill_between(
            step, low + turn, high + turn, color=COLORS[1], alpha=0.3, linewidth=0
        )
        (middle,) = time.plot(step, centre + turn, color=COLORS[1])
        (dashed,) = time.plot(
            step, true + turn, color=INK, linewidth=1.4, linestyle=(0, (3, 1.5))
        )
    (dots,) = time.plot(step, read, "o", color=COLORS[0], markersize=3.5)
    time.set(xlabel="step", ylim=(-180, 180), xlim=(-1, STEPS))
    time.set_title("Heading over time", pad=16)
    degree_ticks(time.yaxis)

    bins = np.linspace(-180, 180, 49)
    for name, at in zip("ab", moments_of_doubt(densities), strict=True):
        time.axvline(at, color="#777777", linewidth=0.8)
        time.annotate(
            name,
            (at, 1.01),
            xycoords=("data", "axes fraction"),
            ha="center",
            weight="bold",
        )
        axes = panels[name]
        axes.hist(np.degrees(cloud[at]), bins, density=True, color=COLORS[1], alpha=0.4)
        (exact,) = axes.plot(
            np.degrees(grid()), np.radians(densities[at]), color=COLORS[2]
        )
        axes.axvline(
            np.degrees(truth[at]), color=INK, linewidth=1.4, linestyle=(0, (3, 1.5))
        )
        axes.plot(
            read[: at + 1][-3:],
            np.zeros(min(at + 1, 3)),
            "o",
            color=COLORS[0],
            clip_on=False,
        )
        axes.set_title(f"{name}: the posterior at step {at}")
        axes.set(xlim=(-180, 180), yticks=[])
        axes.spines["left"].set_visible(False)
        degree_ticks(axes.xaxis)
    names = {
        "true heading": dashed,
        "compass": dots,
        "particles (left: central 90 %)": filled,
        "their mean direction": middle,
        "exact density": exact,
    }
    figure.legend(
        names.values(),
        names.keys(),
        loc="outside lower center",
        ncols=len(names),
        frameon=False,
    )
    return figure


def main(arguments=None):
    """Compare the filters over many runs, print the table and draw one run."""
    options = parser(__doc__).parse_args(arguments)
    initialize_compilation_cache()  # later runs start faster
    runs, sizes = (32, (512,)) if options.quick else (RUNS, (64, 512, PARTICLES))
    print(*table(compare(random.key(0), runs, sizes)), sep="\n")
    if options.out:
        with settings():
            write(picture(), options.out)


if __name__ == "__main__":
    main()
