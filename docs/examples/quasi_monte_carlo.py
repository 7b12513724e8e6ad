"""Integrate over one and several angles with random angles, and with Sobol points mapped by the quantile function.

``python -m docs.examples.quasi_monte_carlo --out FILE`` prints the table and draws the
picture of docs/quasi-monte-carlo.md. Another run on the same machine gives the same
file, byte for byte.

A chain of links of length 1 turns by a von Mises angle at each joint. The mean squared
distance between its ends has a closed form, so the error of every estimate is known.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from scipy import special
from scipy.stats import qmc

from docs.examples.drawing import COLORS, parser, settings, write
from jax_von_mises import (
    icdf,
    initialize_compilation_cache,
    sample_antithetic,
    sample_stratified,
    sample_von_mises,
)

__all__ = ["main"]

LOC, CONCENTRATION = 0.5, 3.0
ANGLES = (1, 2, 6)
SIZES = 4 ** np.arange(2, 8)
REPLICATES = 200


# ------------------------------------------------------------------------------------------------
# the integral


@jax.jit
def squared_distance(angles):
    """Return the squared distance between the ends of a chain with turns `angles` along the last axis."""
    heading = jnp.cumsum(angles, axis=-1)
    x = 1 + jnp.sum(jnp.cos(heading), axis=-1)
    y = jnp.sum(jnp.sin(heading), axis=-1)
    return x**2 + y**2


def exact_mean(angles):
    """Return the mean squared distance, from the mean scalar product of two links."""
    links, lags = angles + 1, np.arange(1, angles + 1)
    turn = special.i1e(CONCENTRATION) / special.i0e(CONCENTRATION) * np.exp(1j * LOC)
    return links + 2 * np.sum((links - lags) * (turn**lags).real)


# ------------------------------------------------------------------------------------------------
# the schemes

# Each returns angles of shape (size, replicates, angles).


def independent(key, size, replicates, angles):
    """Draw independent angles."""
    return sample_von_mises(key, LOC, CONCENTRATION, (size, replicates, angles))


def mirrored(key, size, replicates, angles):
    """Draw chains in pairs whose angles mirror each other about `LOC`; the chains of a pair are adjacent."""
    halves = sample_antithetic(key, LOC, CONCENTRATION, (size, replicates, angles))
    return jnp.stack(jnp.split(halves, 2), axis=1).reshape(halves.shape)


def stratified(key, size, replicates):
    """Draw one angle in each of `size` strata of equal probability."""
    return sample_stratified(key, LOC, CONCENTRATION, (size, replicates, 1))


def sobol(seed, size, replicates, angles):
    """Return angles from Sobol points, scrambled independently for each replicate."""
    seeds = np.random.SeedSequence(seed).spawn(replicates)
    sets = [
        qmc.Sobol(angles, rng=np.random.default_rng(one)).random(size) for one in seeds
    ]
    points = np.stack(sets, axis=1).astype(np.float32)
    return icdf(points, LOC, CONCENTRATION)


# ------------------------------------------------------------------------------------------------
# the errors


def rms_errors(angles, sizes):
    """Return the root mean square error over replicates of the mean of the first n points, for each n in `sizes`."""
    distances = np.asarray(squared_distance(angles), float)
    misses = np.array([distances[:n].mean(axis=0) for n in sizes]) - exact_mean(
        angles.shape[-1]
    )
    return np.sqrt(np.mean(misses**2, axis=1))


def errors(seed, sizes=SIZES, replicates=REPLICATES):
    """Return errors for `sizes`, which are powers of 2, in dicts by number of angles and by scheme."""
    keys = random.split(random.key(seed), 2 + len(sizes))
    shape = (int(max(sizes)), replicates, max(ANGLES))
    # The leading coordinates and points of a set also form a valid set, even for Sobol points.
    drawn = {
        "independent": independent(keys[0], *shape),
        "mirrored pairs": mirrored(keys[1], *shape),
        "Sobol points": sobol(seed, *shape),
    }
    results = {
        d: {name: rms_errors(angles[..., :d], sizes) for name, angles in drawn.items()}
        for d in ANGLES
    }
    # The strata depend on n, so each n needs separate angles.
    sets = [
        stratified(key, int(n), replicates)
        for key, n in zip(keys[2:], sizes, strict=True)
    ]
    results[1]["strata"] = np.concatenate(
        [rms_errors(angles, [len(angles)]) for angles in sets]
    )
    return results


def slope(sizes, rms):
    """Return the power of n with which the errors fall, fitted without the first third of the sizes."""
    first = len(sizes) // 3
    return np.polyfit(np.log(sizes[first:]), np.log(rms[first:]), 1)[0]


def worth(sizes, by_scheme):
    """Return the number of independent draws with the error of each scheme at the largest size, to two digits."""
    one_draw = np.mean(sizes * by_scheme["independent"] ** 2)  # variance of one draw
    equal = {
        name: float(f"{one_draw / rms[-1] ** 2:.2g}") for name, rms in by_scheme.items()
    }
    return equal | {"independent": max(sizes)}


def table(results, sizes):
    """Return the lines of the table: error at the largest size, power of n, and equivalent number of draws."""
    lines = [
        f"{'':10}{'':16}{'RMS error':>12}{'falls as':>11}{'equivalent number of':>22}",
        f"{'':10}{'':16}{f'at n = {max(sizes)}':>12}{'n to the':>11}{'independent draws':>22}",
    ]
    for angles, by_scheme in results.items():
        equal = worth(sizes, by_scheme)
        label = plural(angles)
        for name in (name for name in STYLES if name in by_scheme):
            rms = by_scheme[name]
            lines.append(
                f"{label:10}{name:16}{rms[-1]:12.1e}{slope(sizes, rms):11.2f}{equal[name]:22,.0f}"
            )
            label = ""
    return lines


def plural(angles):
    """Return the label of a number of angles."""
    return "1 angle" if angles == 1 else f"{angles} angles"


# ------------------------------------------------------------------------------------------------
# the picture

GUIDES = {-0.5: "$n^{-1/2}$", -1.0: "$n^{-1}$", -1.5: "$n^{-3/2}$"}
STYLES = {
    "independent": {"color": COLORS[0], "marker": "o"},
    "mirrored pairs": {"color": COLORS[3], "marker": "s"},
    "strata": {
        "color": COLORS[2],
        "marker": "o",
        "markersize": 10,
        "markerfacecolor": "none",
        "linewidth": 0,
    },
    "Sobol points": {"color": COLORS[1], "marker": "D"},
}


def picture(results, sizes):
    """Return the figure: errors against n, with a panel for each number of angles."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(10, 4.6), facecolor="white", layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(results), sharex=True, sharey=True))
    for axes, (angles, by_scheme) in zip(panels, results.items(), strict=True):
        for power, name in GUIDES.items():
            line = by_scheme["independent"][0] * (sizes / sizes[0]) ** power
            axes.plot(
                sizes,
                line,
                color="#999999",
                linewidth=1,
                linestyle=(0, (4, 3)),
                zorder=1,
            )
            axes.annotate(
                name,
                (sizes[-1], line[-1]),
                (4, 0),
                textcoords="offset points",
                va="center",
                color="#777777",
            )
        for name, rms in by_scheme.items():
            axes.plot(sizes, rms, **STYLES[name])
        axes.set_title(plural(angles))
        axes.set(yscale="log", xlabel="number of points n")
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes)
        axes.grid(visible=True)
        axes.minorticks_off()
    panels[0].set_ylabel("RMS error of the mean")
    lines = [Line2D([], [], label=name, **style) for name, style in STYLES.items()]
    figure.legend(
        handles=lines, loc="outside lower center", ncols=len(lines), frameon=False
    )
    return figure


def main(arguments=None):
    """Measure the errors, print the table and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    initialize_compilation_cache()  # later runs start faster
    sizes, replicates = (SIZES[:4], 50) if options.quick else (SIZES, REPLICATES)
    results = errors(0, sizes, replicates)
    print(*table(results, sizes), sep="\n")
    if options.out:
        with settings():
            write(picture(results, sizes), options.out)


if __name__ == "__main__":
    main()
