"""Estimate, test and compare models of measured directions: the headings of 76 turtles.

``python -m docs.examples.angle_statistics --out picture.svg`` prints the tables and draws
the picture of docs/angle-statistics.md.
"""

from functools import partial

import jax
import numpy as np
from scipy import stats

from docs.examples.drawing import COLORS, GREY, draw, near, parser, table
from jax_von_mises import Mixture, VonMises, statistics

# Directions of 76 turtles after they laid eggs, in degrees clockwise from north. Data of
# E. Gould, in M. A. Stephens, "Techniques for directional data", Stanford, 1969.
DEGREES = (
    *(8, 9, 13, 13, 14, 18, 22, 27, 30, 34, 38, 38, 40, 44, 45, 47, 48, 48, 48),
    *(48, 50, 53, 56, 57, 58, 58, 61, 63, 64, 64, 64, 65, 65, 68, 70, 73, 78, 78),
    *(78, 83, 83, 88, 88, 88, 90, 92, 92, 93, 95, 96, 98, 100, 103, 106, 113, 118, 138),
    *(153, 153, 155, 204, 215, 223, 226, 237, 238, 243, 244, 250, 251, 257, 268, 285),
    *(319, 343, 350),
)
TAILS = (0.025, 0.975)  # of all intervals
NAMES = ("one component", "two components")


def measured():
    """Return the directions in radians."""
    return np.deg2rad(DEGREES).astype(np.float32)


def scipy_fit(x):
    """Return SciPy's estimates of the direction and of the concentration."""
    concentration, loc, _ = stats.vonmises.fit(x, fscale=1)
    return loc, concentration


def scipy_bootstrap(x, count):
    """Return SciPy's percentile intervals of both parameters."""
    settings = {"n_resamples": count, "vectorized": False, "method": "percentile"}
    found = stats.bootstrap((x,), scipy_fit, rng=0, **settings)
    return np.transpose(found.confidence_interval)


def estimate_table(x, key, count):
    """Return the table of both parameters with their intervals."""

    def interval(name, loc, concentration=None):
        low, high = np.rad2deg(loc)
        other = (
            "{:.2f} to {:.2f}".format(*concentration)
            if concentration is not None
            else ""
        )
        return [name, f"{low:.1f}° to {high:.1f}°", other]

    fitted, wide = VonMises.fit(x), np.float64(x)
    centre = np.array([fitted.loc, fitted.concentration], float)
    estimates = {"estimate": centre, "estimate, SciPy": scipy_fit(wide)}
    errors = np.outer(fitted.standard_errors(len(x)), stats.norm.ppf(TAILS))
    rows = jax.random.randint(key, (count, len(x)), 0, len(x))
    fits = VonMises.fit(x[rows], axis=1)
    fits = near(np.asarray(fits.loc), centre[0]), fits.concentration
    rows = [
        [name, f"{np.rad2deg(loc):.3f}°", f"{concentration:.4f}"]
        for name, (loc, concentration) in estimates.items()
    ]
    rows += [
        interval("standard errors", *(centre[:, None] + errors)),
        interval("without a model", statistics.confidence_interval(x)),
        interval("bootstrap", *np.quantile(fits, TAILS, axis=1).T),
        interval("bootstrap, SciPy", *scipy_bootstrap(wide, count)),
    ]
    return table(["", "mean direction", "concentration"], rows)


def test_table(x, keys, mixture, counts):
    """Return the table of tests of a uniform distribution, of a fitted one, and of a fitted mixture."""
    results = [
        ("uniform", "Rayleigh", statistics.rayleigh_test(x)),
        ("uniform", "Watson", statistics.watson_test(x)),
        ("uniform", "Kuiper", statistics.kuiper_test(x)),
    ]
    # The fits of all drawn samples start from the fitted mixture.
    fits = VonMises, partial(Mixture.fit, components=mixture)
    for key, name, fit, count in zip(keys, NAMES, fits, counts, strict=True):
        found = statistics.goodness_of_fit(key, x, fit, count)
        results.append((name, "Watson", found))
    rows = [
        [name, test, f"{found.statistic:.4g}", f"{found.pvalue:.2g}"]
        for name, test, found in results
    ]
    return table(["model", "test", "statistic", "p value"], rows)


def picture(x, models):
    """Return the figure: a rose diagram with the fitted densities."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    rose = figure.subplots(subplot_kw={"projection": "polar"})
    angles, width = np.linspace(0, 2 * np.pi, 361, dtype=np.float32), np.deg2rad(20)
    counts, edges = np.histogram(x, np.arange(19) * width)
    # The radius is the root of the count, so that areas are proportional to counts.
    rose.bar(edges[:-1], np.sqrt(counts), width, align="edge", color=GREY, ec="white")
    for name, model, colour in zip(NAMES, models, COLORS[:2], strict=True):
        heights = np.sqrt(len(x) * width * np.asarray(model.prob(angles)))
        rose.plot(angles, heights, color=colour, label=name)
    rose.set(theta_zero_location="N", theta_direction=-1, yticks=[])
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def main(arguments=None):
    """Fit, test and compare the models, print the tables and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    count, fewer = (499, 99) if options.quick else (9_999, 499)
    x, keys = measured(), jax.random.split(jax.random.key(0), 3)
    mixtures = [Mixture.fit(x, VonMises, number=number) for number in (1, 2, 3)]
    models = VonMises.fit(x), mixtures[1]
    print(estimate_table(x, keys[0], count), end="\n\n")
    print(test_table(x, keys[1:], mixtures[1], (count, fewer)), end="\n\n")
    criteria = ", ".join(f"{mixture.bic(x):.1f}" for mixture in mixtures)
    print(f"BIC with one, two and three components: {criteria}")
    draw(options.out, picture, x, models)


if __name__ == "__main__":
    main()
