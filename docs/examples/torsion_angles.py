"""Torsion angles of a protein's backbone: a mixture on the torus, and the same one with distributions that do not wrap.

``python -m docs.examples.torsion_angles --out picture.svg`` prints the table of the
page *Torsion angles* and draws its picture; the same machine gives the same file, byte
for byte. Needs Matplotlib for the picture.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree
from scipy.optimize import linear_sum_assignment

from docs.examples.drawing import COLORS, GREY, INK, parser, settings, write
from jax_von_mises import Mixture, Torus, VonMises

__all__ = ["main"]

# Weight of a region, then centre in degrees and concentration of phi and psi. The
# centres are those of textbooks; the rest is made up.
REGIONS = {
    "alpha helix": (0.42, (-63, -43), (60, 45)),
    "beta sheet": (0.24, (-120, 135), (8, 6)),
    "polyproline II": (0.18, (-70, 145), (25, 12)),
    "left-handed": (0.06, (60, 45), (40, 20)),
    "elsewhere": (0.10, (-90, 60), (1.0, 0.5)),
}
SIZE = 4000  # residues to fit, and as many held out
MOST = 8  # components at most
STARTS, STEPS = 8, 100  # climbs for each number of components, and their steps
WIDE = 4.0  # concentration of all components at the start: 30 degrees
PSEUDO = 0.1  # made-up residues in each component, which keep it from collapsing
EVEN = np.float32(np.pi / 4) * np.float32([[-3, -3], [-1, -1], [1, 1], [3, 3]])
PALETTE = (COLORS[5], COLORS[4], COLORS[2], COLORS[3], GREY)  # of the regions
PLACES = (
    (-26, -62),
    (-172, 38),
    (-14, 152),
    (92, 62),
    (70, -110),
)  # of their names in the picture
LEVELS = 10.0 ** np.arange(-6, -3, 0.5)  # of the density, per square degree


# Compiled as a whole; called as methods, each operation would be compiled alone, which
# takes longer than the sums.
density, responsibilities = jax.jit(Mixture.prob), jax.jit(Mixture.responsibilities)
divergence = jax.jit(Torus.kl_divergence)

# ------------------------------------------------------------------------------------------------
# the distributions


def truth():
    """The distribution of the data."""
    columns = zip(*REGIONS.values(), strict=True)
    weights, centres, concentrations = (
        jnp.asarray(np.float32(column)) for column in columns
    )
    return Mixture(
        probs=weights, components=Torus(VonMises(jnp.deg2rad(centres), concentrations))
    )


@functools.partial(jax.jit, static_argnames="size")
def simulate(key, size):
    """Pairs of phi and psi in radians."""
    return truth().sample(key, (size,))


# A named tuple, since JAX (0.10 to 0.12) takes two registered dataclasses with as many
# fields for the same structure: now and then a program compiled for `VonMises` would
# run with a `Normal`.
class Normal(NamedTuple):
    """The normal distribution of an angle taken for a number, with what a mixture asks of `VonMises`: the wrong tool here."""

    loc: jax.Array
    concentration: (
        jax.Array
    )  # one over the variance, which is what it is for a narrow von Mises distribution

    event_shape = ()

    @property
    def batch_shape(self):
        """Shape of the parameters."""
        return self.loc.shape

    @property
    def dtype(self):
        """The float dtype of densities."""
        return self.loc.dtype

    def log_prob(self, value):
        """Logarithm of the density."""
        shape = jnp.broadcast_shapes(value.shape, self.loc.shape)
        value, loc, concentration = (
            jnp.broadcast_to(a, shape) for a in (value, self.loc, self.concentration)
        )
        return 0.5 * (
            jnp.log(concentration / (2 * jnp.pi)) - concentration * (value - loc) ** 2
        )

    @classmethod
    def fit(cls, samples, weights, axis):
        """Weighted mean, and one over the weighted variance."""
        total = weights.sum(axis, keepdims=True)
        loc = (weights * samples).sum(axis, keepdims=True) / total
        variance = (weights * (samples - loc) ** 2).sum(axis, keepdims=True) / total
        return cls(loc.squeeze(axis), 1 / variance.squeeze(axis))


# ------------------------------------------------------------------------------------------------
# the fit


def step(distribution, points, pseudo=PSEUDO):
    """One step of expectation maximisation: whose is each point, and then every component's own fit."""
    kind = type(distribution.components.components)
    shares = distribution.responsibilities(points)
    logits = jnp.where(
        distribution.logits == -jnp.inf, -jnp.inf, jnp.log(shares.sum(0) + pseudo)
    )

    # The made-up residues: four points, evenly spread in phi and in psi, that share the
    # weight `pseudo`.
    shares = jnp.concatenate(
        [shares, jnp.full((len(EVEN), shares.shape[1]), pseudo / len(EVEN))]
    )
    points = jnp.concatenate([points, jnp.asarray(EVEN)])
    angles = jnp.broadcast_to(points[:, None, :], (*shares.shape, 2))
    return Mixture(
        logits=logits, components=Torus(kind.fit(angles, shares[:, :, None], axis=0))
    )


def climb(distribution, points, steps):
    """Many steps."""
    return lax.scan(
        lambda distribution, _: (step(distribution, points), None),
        distribution,
        length=steps,
    )[0]


def start(key, points, size, most, kind):
    """`most` components around points picked at random, of which `size` have a weight."""
    centres = random.choice(key, points, (most,), replace=False)
    logits = jnp.where(jnp.arange(most) < size, 0.0, -jnp.inf)
    return Mixture(
        logits=logits, components=Torus(kind(centres, jnp.full(centres.shape, WIDE)))
    )


@jax.jit
def likelihood(distribution, points):
    """Mean logarithm of the density, for each mixture of a batch."""
    points = points.reshape(len(points), *(1 for _ in distribution.batch_shape), 2)
    return jnp.mean(distribution.log_prob(points), axis=0)


@functools.partial(jax.jit, static_argnames=("kind", "most", "starts", "steps"))
def search(key, points, kind=VonMises, most=MOST, starts=STARTS, steps=STEPS):
    """The best mixtures of 1 to `most` components, as one batch."""

    def attempt(key, size):
        distribution = climb(start(key, points, size, most, kind), points, steps)
        return distribution, likelihood(distribution, points)

    def of_size(key, size):
        distributions, heights = jax.vmap(attempt, in_axes=(0, None))(
            random.split(key, starts), size
        )
        return jax.tree.map(lambda leaf: leaf[jnp.argmax(heights)], distributions)

    return jax.vmap(of_size)(random.split(key, most), jnp.arange(1, most + 1))


def bic(distribution, points):
    """Bayesian information criterion of each mixture of a batch, in nats a point: low is good."""
    weights = jnp.sum(distribution.logits > -jnp.inf, axis=-1).astype(
        distribution.dtype
    )
    free = (
        weights - 1
    ) + 4 * weights  # each component has two centres and two concentrations
    return free * np.log(len(points)) / (2 * len(points)) - likelihood(
        distribution, points
    )


@jax.jit
def scores(distribution, points, held_out):
    """Both scores of each mixture of a batch: what the fit costs by BIC, and how likely other points are."""
    return bic(distribution, points), likelihood(distribution, held_out)


def fewest(marks):
    """The number of components that BIC takes."""
    return 1 + int(np.argmin(marks[0]))


def pick(distributions, size):
    """The mixture of `size` components out of the batch that `search` makes."""
    return jax.tree.map(lambda leaf: leaf[size - 1, :size], distributions)


# ------------------------------------------------------------------------------------------------
# what it found


def matched(distribution, other):
    """`distribution` in the order of the components of `other` that are nearest, in the Kullback-Leibler divergence."""
    ours, theirs = distribution.components.components, other.components.components
    rows = Torus(VonMises(theirs.loc[:, None], theirs.concentration[:, None]))
    columns = Torus(VonMises(ours.loc[None], ours.concentration[None]))
    order = linear_sum_assignment(np.asarray(divergence(rows, columns)))[1]
    return Mixture(
        logits=distribution.log_weights()[order],
        components=jax.tree.map(lambda leaf: leaf[order], distribution.components),
    )


@jax.jit
def numbers(distribution):
    """Weight, centre in degrees and concentration of each component, as the table shows them."""
    angles = distribution.components.components
    weights = jnp.exp(distribution.log_weights())[:, None]
    return jnp.concatenate(
        [weights, jnp.rad2deg(angles.loc), angles.concentration], axis=1
    )


@jax.jit
def standard_errors(distribution, points):
    """Standard errors of `numbers`, from the curvature of the likelihood: they know that regions overlap."""
    angles = distribution.components.components
    # All coordinates of a like scale, and only as many as are free: the last logit
    # stays.
    start, unravel = ravel_pytree(
        (
            distribution.logits[:-1] - distribution.logits[-1],
            angles.loc,
            jnp.log(angles.concentration),
        )
    )

    def at(flat):
        logits, loc, log_concentration = unravel(flat)
        logits = jnp.append(logits, 0.0)
        return Mixture(
            logits=logits, components=Torus(VonMises(loc, jnp.exp(log_concentration)))
        )

    information = -len(points) * jax.hessian(lambda flat: likelihood(at(flat), points))(
        start
    )
    slopes = jax.jacobian(lambda flat: numbers(at(flat)))(start)
    covariance = jnp.linalg.inv(information)
    return jnp.sqrt(jnp.einsum("cni,ij,cnj->cn", slopes, covariance, slopes))


def ordinary_mean(points, weights):
    """Weighted mean of angles taken for numbers, and their standard deviation, in degrees."""
    mean = np.average(points, weights=weights)
    return np.rad2deg(mean), np.rad2deg(
        np.sqrt(np.average((points - mean) ** 2, weights=weights))
    )


@jax.jit
def along_psi(distribution, psi):
    """Density of psi alone, per degree."""
    angles = distribution.components.components
    alone = Mixture(
        logits=distribution.logits,
        components=type(angles)(angles.loc[:, 1], angles.concentration[:, 1]),
    )
    return jnp.exp(alone.log_prob(psi)) * np.pi / 180


def table(size, marks, best, distribution, errors, points):
    """Lines of text: how many components, what they are, and the cut."""
    lines = [
        f"{size} simulated residues, and as many held out; nats for each residue",
        "",
    ]
    lines += [
        f"{'':12}{'von Mises':>20}{'normal':>20}",
        f"{'components':12}" + f"{'BIC':>10}{'held out':>10}" * 2,
    ]
    for number, row in enumerate(zip(*marks[0], *marks[1], strict=True), 1):
        lines.append(f"{number:<12}" + "".join(f"{value:10.4f}" for value in row))
    lines.append(f"{'the true distribution':21}{best:11.4f}")
    lines += [
        "lowest BIC: von Mises {}, normal {}".format(*(fewest(mark) for mark in marks)),
        "",
    ]

    lines += ["found (standard error), and below it the truth"]
    lines += [
        f"{'':15}{'weight':>15}{'phi':>15}{'psi':>15}{'kappa of phi':>15}{'kappa of psi':>15}"
    ]
    for name, found, error, true in zip(
        REGIONS, numbers(distribution), errors, numbers(truth()), strict=True
    ):
        digits = (3, 1, 1, 1, 1)
        cells = (
            f"{f:.{d}f} ({e:.{d}f})"
            for f, e, d in zip(found, error, digits, strict=True)
        )
        lines.append(f"{name:15}" + "".join(f"{cell:>15}" for cell in cells))
        cells = (
            f"{t:.{d}f}" + " " * (d + 5) for t, d in zip(true, digits, strict=True)
        )
        lines.append((f"{'':15}" + "".join(f"{cell:>15}" for cell in cells)).rstrip())

    sheet = list(REGIONS).index("beta sheet")
    mean, deviation = ordinary_mean(
        np.asarray(points[:, 1]),
        np.asarray(responsibilities(distribution, points)[:, sheet]),
    )
    angles = distribution.components.components
    spread = np.rad2deg(VonMises(0.0, angles.concentration[sheet, 1]).stddev())
    lines += [
        "",
        f"psi of the beta sheet   mean direction {np.rad2deg(angles.loc[sheet, 1]):.1f}, deviation {spread:.1f}",
        f"the same as numbers     mean           {mean:.1f}, deviation {deviation:.1f}",
    ]
    return lines


# ------------------------------------------------------------------------------------------------
# the picture


def picture(points, marks, best, distribution, others):
    """Make the figure: the plane of angles, the number of components, and psi across the cut."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.25, 1))
    draw_plane(figure.add_subplot(grid[:, 0]), points, distribution, others[-1])
    draw_choice(figure.add_subplot(grid[0, 1]), marks, best)
    draw_cut(figure.add_subplot(grid[1, 1]), points, distribution, others)
    return figure


def draw_plane(axes, points, distribution, other):
    """Ramachandran's picture: the residues, each in the colour of its likeliest region, and lines of equal density."""
    from matplotlib import patheffects

    degrees = np.linspace(-180, 180, 181)
    phi_psi = np.deg2rad(np.stack(np.meshgrid(degrees, degrees), axis=-1)).astype(
        np.float32
    )
    heights = np.asarray(density(distribution, phi_psi)) * (np.pi / 180) ** 2
    owner = np.argmax(responsibilities(distribution, points), axis=1)
    # As an image: four thousand paths would make a large file.
    axes.scatter(
        *np.rad2deg(points).T,
        s=6,
        c=np.array(PALETTE)[owner],
        linewidths=0,
        rasterized=True,
    )
    axes.contour(degrees, degrees, heights, LEVELS, colors=INK, linewidths=0.8)
    centres = np.rad2deg(other.components.components.loc)
    label = f"centres of {len(centres)} normal distributions"
    axes.plot(
        *centres.T,
        "X",
        color=COLORS[0],
        markeredgecolor="white",
        markersize=9,
        label=label,
    )
    axes.legend(loc="lower right", handletextpad=0.2)
    halo = [patheffects.withStroke(linewidth=3, foreground="white")]
    for name, place in zip(REGIONS, PLACES, strict=True):
        axes.text(*place, name, color=INK, fontweight="bold", path_effects=halo)
    axes.set(
        xlim=(-180, 180),
        ylim=(-180, 180),
        aspect="equal",
        xlabel="φ, degrees",
        ylabel="ψ, degrees",
    )
    axes.set_xticks(np.arange(-180, 181, 60))
    axes.set_yticks(np.arange(-180, 181, 60))
    axes.set_title("Residues, and lines of equal density")


def draw_choice(axes, marks, best):
    """What a fit loses against the true distribution on residues that it has not seen, and what BIC takes."""
    for mark, name, colour in zip(
        marks, ("von Mises", "normal"), (INK, COLORS[0]), strict=True
    ):
        lost, taken = best - mark[1], fewest(mark)
        sizes = np.arange(1, len(lost) + 1)
        axes.plot(sizes, lost, "o-", color=colour, label=name)
        axes.plot(
            taken, lost[taken - 1], "o", color=colour, markersize=12, fillstyle="none"
        )
    axes.plot(
        [], [], "o", color=INK, markersize=12, fillstyle="none", label="lowest BIC"
    )
    axes.set(
        xlabel="components",
        ylabel="nats lost on a residue held out",
        xticks=sizes,
        yscale="log",
    )
    axes.set_title("How many components")
    axes.legend(frameon=False, loc="upper right")
    axes.grid(True)


def draw_cut(axes, points, distribution, others):
    """The density of psi around 180 degrees by each distribution, over the residues."""
    degrees = np.arange(90, 271)
    edges = degrees[::10]
    heights = (
        np.histogram(np.rad2deg(np.asarray(points[:, 1])) % 360, edges)[0]
        / len(points)
        / np.diff(edges)
    )
    axes.stairs(heights, edges, fill=True, color=GREY, label="residues")
    count = len(distribution.logits)
    curves = [(distribution, f"von Mises, {count}", INK, "-")]
    curves += [
        (o, f"normal, {len(o.logits)}", COLORS[0], s)
        for o, s in zip(others, ("-", "--"), strict=True)
    ]
    for fitted, label, colour, style in curves:
        # Both sides of the cut, and a gap between: what is a jump is to be seen as one.
        numbers = np.deg2rad(np.where(degrees < 180, degrees, degrees - 360)).astype(
            np.float32
        )
        curve = np.asarray(along_psi(fitted, numbers))
        axes.plot(
            degrees[degrees < 180],
            curve[degrees < 180],
            style,
            color=colour,
            label=label,
        )
        axes.plot(degrees[degrees >= 180], curve[degrees >= 180], style, color=colour)
    axes.axvline(180, color=INK, linestyle=":", linewidth=1.2)
    axes.set_xticks(
        np.arange(90, 271, 30), ["90", "120", "150", "±180", "−150", "−120", "−90"]
    )
    axes.set(xlabel="ψ, degrees", ylabel="density per degree", xlim=(90, 270))
    axes.set_title("ψ across the cut")
    axes.legend(frameon=False)


def main(arguments=None):
    """Simulate, fit both kinds of distribution, print the tables and draw the picture."""
    given = parser(__doc__).parse_args(arguments)
    first, second, starts = random.split(random.key(0), 3)
    size = 1500 if given.quick else SIZE
    points, held_out = simulate(first, size), simulate(second, size)

    less = {"most": 6, "starts": 3, "steps": 50} if given.quick else {}
    fits = [search(starts, points, kind=kind, **less) for kind in (VonMises, Normal)]
    marks = [
        [np.asarray(column) for column in scores(fit, points, held_out)] for fit in fits
    ]
    best = float(likelihood(truth(), held_out))

    distribution = matched(pick(fits[0], fewest(marks[0])), truth())
    print(
        *table(
            size,
            marks,
            best,
            distribution,
            standard_errors(distribution, points),
            points,
        ),
        sep="\n",
    )
    if given.out:
        others = [pick(fits[1], fewest(mark)) for mark in marks]
        with settings():
            write(picture(points, marks, best, distribution, others), given.out)


if __name__ == "__main__":
    main()
