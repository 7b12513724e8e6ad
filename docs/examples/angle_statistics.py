"""Estimate, test and compare models of measured directions: the headings of 76 turtles.

``python -m docs.examples.angle_statistics --out picture.svg`` prints the tables and draws
the picture of docs/angle-statistics.md, which needs Matplotlib. The times go to stderr.
"""

import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from docs.examples.drawing import COLORS, GREY, INK, near, parser, settings, write
from jax_von_mises import Mixture, VonMises

__all__ = ["main"]

# Directions of 76 turtles after they laid eggs, in degrees clockwise from north. Data of
# E. Gould, in M. A. Stephens, "Techniques for directional data", Stanford, 1969.
DEGREES = (
    *(8, 9, 13, 13, 14, 18, 22, 27, 30, 34, 38, 38, 40, 44, 45, 47, 48, 48, 48),
    *(48, 50, 53, 56, 57, 58, 58, 61, 63, 64, 64, 64, 65, 65, 68, 70, 73, 78, 78),
    *(78, 83, 83, 88, 88, 88, 90, 92, 92, 93, 95, 96, 98, 100, 103, 106, 113, 118, 138),
    *(153, 153, 155, 204, 215, 223, 226, 237, 238, 243, 244, 250, 251, 257, 268, 285),
    *(319, 343, 350),
)
LEVEL = 0.95  # of all intervals
TAILS = np.array([0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
NUMBERS = (1, 2, 3)  # of components


def measured():
    """Return the directions in radians."""
    return np.deg2rad(DEGREES).astype(np.float32)


# ------------------------------------------------------------------------------------------------
# intervals


@jax.jit
def refits(x, rows):
    """Fit the distribution to `x[each]` for each row of `rows`."""
    return jax.vmap(lambda each: VonMises.fit(x[each]))(rows)


def percentiles(fits, fitted):
    """Return the percentile intervals of both parameters."""
    loc = near(np.asarray(fits.loc), float(fitted.loc))
    return np.quantile(loc, TAILS), np.quantile(fits.concentration, TAILS)


@jax.jit
def posterior(x, loc, concentration):
    """Return the posterior probability of each point of a grid, with a uniform prior on the grid."""
    models = VonMises(loc[:, None], concentration)
    return jax.nn.softmax(models.log_prob(x[:, None, None]).sum(0), axis=(0, 1))


def grid(fitted):
    """Return the directions, half a turn to each side of the estimate, and the concentrations of the grid."""
    loc = float(fitted.loc) + np.linspace(-np.pi, np.pi, 720, endpoint=False)
    return np.float32(loc), np.linspace(0, 4, 401, dtype=np.float32)


def grid_interval(points, weights):
    """Return the points between which the middle `LEVEL` of the weights lies."""
    return np.interp(TAILS, np.cumsum(weights), points)


# ------------------------------------------------------------------------------------------------
# tests


def rayleigh(x):
    """Return the statistic n R^2 of the Rayleigh test of uniformity, and its p value (J. H. Zar, 1999, section 27.1)."""
    n = len(x)
    length = n * abs(np.mean(np.exp(1j * np.float64(x))))
    root = np.sqrt(1 + 4 * n + 4 * (n**2 - length**2))
    return length**2 / n, np.exp(root - 1 - 2 * n)


def watson(cdf, x):
    """Return Watson's U^2, a distance from a distribution that does not depend on the zero direction."""
    n = len(x)
    u = jnp.sort(cdf(x))
    steps = np.float32((np.arange(n) + 0.5) / n)
    return jnp.sum((u - steps) ** 2) + 1 / (12 * n) - n * (jnp.mean(u) - 0.5) ** 2


@jax.jit
def watson_of(models, samples):
    """Return U^2 of each sample from the model at the same place."""
    return jax.vmap(lambda model, x: watson(model.cdf, x))(models, samples)


@functools.partial(jax.jit, static_argnames=("size", "count"))
def watson_of_draws(key, fitted, size, count):
    """Return U^2 of `count` samples from a fitted distribution, each from the fit to that sample."""
    draws = fitted.sample(key, (count, size))
    return watson_of(jax.vmap(VonMises.fit)(draws), draws)


def watson_of_mixture_draws(key, mixture, size, count):
    """Return the same for a mixture, whose fit takes several data sets at once instead of `vmap`."""
    draws = mixture.sample(key, (count, size))
    return watson_of(Mixture.fit(draws, mixture, axis=1), draws)


# ------------------------------------------------------------------------------------------------
# mixtures


def bic(mixture, x, tied):
    """Return the Bayesian information criterion of a fitted mixture; smaller is better."""
    number = mixture.logits.shape[-1]
    free = 2 * number - 1 + (1 if tied else number)
    return free * np.log(len(x)) - 2 * float(mixture.log_prob(x).sum())


def fits(x, numbers):
    """Return the fitted mixtures by (number of components, tied); for one component, both are the same."""
    found = {}
    for number in numbers:
        found[number, False] = Mixture.fit(x, VonMises, number=number)
        found[number, True] = found[number, False]
        if number > 1:
            found[number, True] = Mixture.fit(x, VonMises, number=number, tied=True)
    return found


# ------------------------------------------------------------------------------------------------
# SciPy


def scipy_fit(x):
    """Return SciPy's estimates of the direction and of the concentration."""
    concentration, loc, _ = stats.vonmises.fit(x, fscale=1)
    return loc, concentration


def scipy_bootstrap(x, count):
    """Return SciPy's percentile intervals of both parameters."""
    settings = {"n_resamples": count, "vectorized": False, "method": "percentile"}
    found = stats.bootstrap((x,), scipy_fit, confidence_level=LEVEL, rng=0, **settings)
    return np.transpose(found.confidence_interval)


def scipy_watson(x, count):
    """Return U^2 and its p value by SciPy's parametric bootstrap."""

    def statistic(distribution, x, axis):
        u, n = np.sort(distribution.cdf(x), axis), x.shape[axis]
        distance = np.sum((u - (np.arange(n) + 0.5) / n) ** 2, axis)
        return distance + 1 / (12 * n) - n * (np.mean(u, axis) - 0.5) ** 2

    settings = {"known_params": {"scale": 1}, "n_mc_samples": count, "rng": 0}
    found = stats.goodness_of_fit(stats.vonmises, x, statistic=statistic, **settings)
    return found.statistic, found.pvalue


# ------------------------------------------------------------------------------------------------
# the report


def timed(name, function, *arguments, calls=2):
    """Return the result of a function, and print the times of its first calls to stderr."""
    seconds = []
    for _ in range(calls):
        begun = time.perf_counter()
        result = jax.block_until_ready(function(*arguments))
        seconds.append(f"{time.perf_counter() - begun:.4f}")
    print(f"{name}: {' s, then '.join(seconds)} s", file=sys.stderr)
    return result


def table(head, rows):
    """Return the lines of a Markdown table whose first column holds names."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def estimate_cells(loc, concentration):
    """Return the cells of a pair of estimates."""
    return f"{np.rad2deg(float(loc)):.3f}°", f"{concentration:.4f}"


def interval_cells(loc, concentration):
    """Return the cells of a pair of intervals."""
    low, high = np.rad2deg(np.asarray(loc, float))
    return f"{low:.1f}° to {high:.1f}°", "{:.2f} to {:.2f}".format(*concentration)


def bic_table(criteria, numbers):
    """Return the lines of the table of BIC values; the smallest is bold."""
    cells = {case: f"{value:.1f}" for case, value in criteria.items()}
    best = min(criteria, key=criteria.get)
    cells[best] = f"**{cells[best]}**"
    rows = [[str(each), cells[each, False], cells[each, True]] for each in numbers]
    return table(["components", "own concentrations", "one concentration"], rows)


def component_table(mixture, resampled):
    """Return the lines of the table of components, with the intervals of their weights."""
    parts, weights = mixture.components, np.asarray(mixture.probs)
    rows = []
    for j in np.argsort(-weights):
        low, high = np.quantile(resampled.probs[:, j], TAILS)
        direction = np.rad2deg(float(parts.loc[j])) % 360
        cells = f"{low:.2f} to {high:.2f}", f"{direction:.0f}°"
        rows.append([f"{weights[j]:.2f}", *cells, f"{parts.concentration[j]:.1f}"])
    return table(["weight", "95% interval", "mean direction", "concentration"], rows)


def picture(x, fitted, mixture, resampled, cloud, weights):
    """Return the figure: a rose diagram, a histogram with densities, and the uncertainty of both parameters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.4), layout="constrained")
    rose = figure.add_subplot(1, 3, 1, projection="polar")
    line, plane = figure.add_subplot(1, 3, 2), figure.add_subplot(1, 3, 3)
    degrees = np.arange(361)
    angles = np.float32(np.deg2rad(degrees))
    counts, edges = np.histogram(np.rad2deg(x), np.arange(0, 361, 20))
    per_bin = len(x) * np.deg2rad(20)  # density to expected number in a bin
    bars = {"align": "edge", "color": GREY, "edgecolor": "white", "linewidth": 0.5}
    # The radius is the root of the count, so that areas are proportional to counts.
    rose.bar(np.deg2rad(edges[:-1]), np.sqrt(counts), np.deg2rad(20), **bars)
    line.bar(edges[:-1], counts, 20, **bars)
    names = "one component", "two components"
    for name, model, colour in zip(names, (fitted, mixture), COLORS, strict=False):
        heights = per_bin * np.asarray(model.prob(angles))
        rose.plot(angles, np.sqrt(heights), color=colour)
        line.plot(degrees, heights, color=colour, label=name)
    heights = jax.jit(jax.vmap(lambda each: each.prob(angles)))(resampled)
    low, high = per_bin * np.quantile(heights, TAILS, axis=0)
    band = {"alpha": 0.2, "linewidth": 0, "label": "95% bootstrap interval"}
    line.fill_between(degrees, low, high, color=colour, **band)
    rose.set(theta_zero_location="N", theta_direction=-1, yticklabels=[])
    rose.set(title=f"{len(x)} turtles, clockwise from north")
    line.set(xlabel="direction, degrees", ylabel="turtles per 20°", xlim=(0, 360))
    line.set(title="Fitted densities", xticks=range(0, 361, 60))
    line.legend(frameon=False)
    draw_plane(plane, fitted, cloud, weights)
    return figure


def draw_plane(axes, fitted, cloud, weights):
    """Draw the bootstrap estimates, and the regions of `LEVEL` of the normal approximation and of the posterior."""
    centre, k = float(fitted.loc), float(fitted.concentration)
    loc = near(np.asarray(cloud.loc), centre)
    dots = {"color": GREY, "markersize": 3, "rasterized": True, "label": "bootstrap"}
    axes.plot(np.rad2deg(loc), cloud.concentration, ".", **dots)
    errors = np.array(fitted.standard_errors(len(DEGREES)))
    across, up = errors * np.sqrt(stats.chi2.ppf(LEVEL, 2))
    turn = np.linspace(0, 2 * np.pi, 200)
    ellipse = np.rad2deg(centre + across * np.cos(turn)), k + up * np.sin(turn)
    axes.plot(*ellipse, color=COLORS[0], label="standard errors")
    # The smallest region that holds `LEVEL` of the posterior lies above this height.
    heights = np.sort(weights, axis=None)[::-1]
    height = heights[np.searchsorted(np.cumsum(heights), LEVEL)]
    loc, concentration = grid(fitted)
    line = {"colors": [COLORS[2]], "linewidths": 1.8}
    axes.contour(np.rad2deg(loc), concentration, weights.T, [height], **line)
    axes.plot([], [], color=COLORS[2], label="posterior")
    axes.plot(np.rad2deg(centre), k, "+", color=INK, markersize=9)
    axes.set(xlabel="mean direction, degrees", ylabel="concentration")
    axes.set(xlim=(30, 100), ylim=(0.3, 3.1), title="One component: 95% regions")
    axes.legend(frameon=False, loc="upper left")


def estimates(x, key, count):
    """Print both parameters and their intervals; return the fit, bootstrap fits and posterior."""
    n, wide = len(x), np.float64(x)
    fitted, theirs = timed("fit", VonMises.fit, x), timed("SciPy, fit", scipy_fit, wide)
    name = f"bootstrap of {count:,} samples"
    cloud = timed(name, refits, x, jax.random.randint(key, (count, n), 0, n))
    scipy_intervals = timed(f"SciPy, {name}", scipy_bootstrap, wide, count, calls=1)
    weights = np.asarray(posterior(x, *grid(fitted)), np.float64)

    ours, errors = (fitted.loc, fitted.concentration), fitted.standard_errors(n)
    normal = (
        float(a) + stats.norm.ppf(TAILS) * float(b)
        for a, b in zip(ours, errors, strict=True)
    )
    sums = weights.sum(1), weights.sum(0)
    rows = [
        ["estimate", *estimate_cells(*ours)],
        ["estimate, SciPy", *estimate_cells(*theirs)],
        ["standard errors", *interval_cells(*normal)],
        ["bootstrap", *interval_cells(*percentiles(cloud, fitted))],
        ["bootstrap, SciPy", *interval_cells(*scipy_intervals)],
        ["posterior", *interval_cells(*map(grid_interval, grid(fitted), sums))],
    ]
    print(*table(["", "mean direction", "concentration"], rows), "", sep="\n")
    return fitted, cloud, weights


def tests(x, keys, fitted, mixture, count, fewer):
    """Print the tests of a uniform distribution, of the fitted one, and of the fitted mixture."""
    rows = [["uniform", "Rayleigh", *map("{:.3g}".format, rayleigh(x))]]
    for key, name, model, draw, number in (
        (keys[0], "one component", fitted, watson_of_draws, count),
        (keys[1], "two components", mixture, watson_of_mixture_draws, fewer),
    ):
        title = f"U^2 of {number:,} samples, {name}"
        simulated = timed(title, draw, key, model, len(x), number)
        statistic = watson(jax.jit(model.cdf), x)
        p = (1 + np.sum(simulated >= statistic)) / (1 + number)
        rows.append([name, "Watson", f"{statistic:.4f}", f"{p:.4f}"])
    title = f"SciPy, U^2 of {count:,} samples"
    statistic, p = timed(title, scipy_watson, np.float64(x), count, calls=1)
    rows.insert(2, ["one component, SciPy", "Watson", f"{statistic:.4f}", f"{p:.4f}"])
    print(*table(["model", "test", "statistic", "p value"], rows), "", sep="\n")


def main(arguments=None):
    """Fit, test and compare the models, print the tables and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    count, fewer = (499, 99) if options.quick else (9_999, 499)
    numbers = (2,) if options.quick else NUMBERS
    x, keys = measured(), jax.random.split(jax.random.key(0), 4)

    fitted, cloud, weights = estimates(x, keys[0], count)
    models = timed("mixtures", fits, x, numbers, calls=1)
    mixture = models[2, False]
    tests(x, keys[1:3], fitted, mixture, count, fewer)

    criteria = {case: bic(model, x, case[1]) for case, model in models.items()}
    print(*bic_table(criteria, numbers), "", sep="\n")
    rows = np.asarray(jax.random.randint(keys[3], (fewer, len(x)), 0, len(x)))
    resampled = Mixture.fit(x[rows], mixture, axis=1)
    print(*component_table(mixture, resampled), sep="\n")
    if options.out:
        with settings():
            figure = picture(x, fitted, mixture, resampled, cloud, weights)
            write(figure, options.out)


if __name__ == "__main__":
    main()
