"""Cluster directions by mixtures of von Mises-Fisher distributions: expenses of households, and embeddings.

``python -m docs.examples.direction_clusters --out picture.svg`` prints the tables and
draws the picture of docs/direction-clusters.md. The picture needs Matplotlib.
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from docs.examples.drawing import COLORS, GREY, INK, parser, settings, write
from jax_von_mises import Mixture, VonMisesFisher

__all__ = ["main"]

# Expenses of 20 single women and 20 single men in Hong Kong dollars, from D. J. Hand et
# al., "A Handbook of Small Data Sets", 1994; data set `household` of R's HSAUR2.
DATA = Path(__file__).with_name("household.csv")
NAMES = ("housing", "food", "service")
NUMBERS = (1, 2, 3, 4, 5)
# Embeddings: clusters, dimension, and the mean cosine to the centre of a cluster.
CLUSTERS, DIMENSION, COSINE = 20, 384, 0.6

# ------------------------------------------------------------------------------------------------
# households


def households():
    """Return the shares of the expenses as unit vectors, and whether each person is a woman."""
    table = np.loadtxt(DATA, str, delimiter=",", skiprows=1)
    expenses = table[:, :3].astype(np.float32)
    unit = expenses / np.linalg.norm(expenses, axis=1, keepdims=True)
    return unit, table[:, 3] == "female"


def bic(mixture, x, tied):
    """Return the Bayesian information criterion of a mixture fitted to directions `x`; smaller is better."""
    number, d = mixture.logits.shape[-1], x.shape[1]
    free = number * d - 1 + (1 if tied else number)
    return free * np.log(len(x)) - 2 * float(mixture.log_prob(x).sum())


def fits(x, numbers):
    """Return the fitted mixtures by (number of components, tied)."""
    return {
        (number, tied): Mixture.fit(
            x, VonMisesFisher, number=number, tied=tied, largest_concentration=500.0
        )
        for number in numbers
        for tied in (False, True)
    }


# ------------------------------------------------------------------------------------------------
# embeddings


def embeddings(key, count):
    """Return made embeddings, unit vectors, and the cluster of each."""
    centre_key, label_key, key = jax.random.split(key, 3)
    centres = jax.random.normal(centre_key, (CLUSTERS, DIMENSION))
    clusters = VonMisesFisher(centres, concentration_of(COSINE))
    labels = jax.random.randint(label_key, (count,), 0, CLUSTERS)
    return clusters[labels].sample(key), np.asarray(labels)


def concentration_of(cosine):
    """Return the concentration with this mean cosine to the mean direction in `DIMENSION` dimensions."""
    return cosine * (DIMENSION - cosine**2) / (1 - cosine**2)


@jax.jit
def most_likely(mixture, x):
    """Return the most likely component of each direction."""
    dots = x @ mixture.components.natural.T
    constant = mixture.components.log_prob(mixture.components.mode())
    constant = constant - mixture.components.concentration + mixture.log_weights()
    return jnp.argmax(dots + constant[None], -1)


def confusion(found, labels):
    """Return the number of embeddings by true cluster and component, with the components in the clusters' order."""
    counts = np.zeros((CLUSTERS, CLUSTERS), int)
    np.add.at(counts, (labels, np.asarray(found)), 1)
    return counts[:, np.argsort(counts.argmax(0), kind="stable")]


# ------------------------------------------------------------------------------------------------
# the report


def bic_table(criteria, numbers):
    """Return the lines of the table of BIC values; the smallest of a column is bold."""
    lines = [
        "| components | own concentrations | one concentration |",
        "|---:|---:|---:|",
    ]
    for number in numbers:
        cells = []
        for tied in (False, True):
            text = f"{criteria[number, tied]:.1f}"
            best = min(criteria[each, tied] for each in numbers)
            cells.append(f"**{text}**" if criteria[number, tied] == best else text)
        lines.append(f"| {number} | {cells[0]} | {cells[1]} |")
    return lines


def component_table(mixture, x, women):
    """Return the lines of the table of components."""
    lines = [
        "| weight | concentration | " + " | ".join(NAMES) + " | women | men |",
        "|---:" * 7 + "|",
    ]
    of = np.asarray(jnp.argmax(mixture.responsibilities(x), -1))
    parts = jax.tree.map(np.asarray, mixture.components)
    for j in np.argsort(-np.asarray(mixture.probs)):
        cells = [f"{mixture.probs[j]:.2f}", f"{parts.concentration[j]:.0f}"]
        cells += [f"{value:.2f}" for value in parts.mean_direction[j]]
        cells += [str(np.sum((of == j) & women)), str(np.sum((of == j) & ~women))]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def flat(x):
    """Return places in a triangle whose corners are the three axes; directions have the squares as weights."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
    return np.square(x) @ corners


def picture(mixture, x, women, criteria, numbers, counts):
    """Return the figure: households with the density, BIC values, and clusters of embeddings."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.4), layout="constrained")
    planes = figure.subplots(1, 3)
    draw_households(planes[0], mixture, x, women)
    for tied, colour in zip((False, True), COLORS, strict=False):
        name = "one concentration" if tied else "own concentrations"
        heights = [criteria[number, tied] for number in numbers]
        planes[1].plot(numbers, heights, "o-", color=colour, label=name)
    planes[1].set(xlabel="components", ylabel="BIC", xticks=numbers)
    planes[1].set_title("Households: smaller is better")
    planes[1].legend(frameon=False)
    planes[1].grid(True)
    image = planes[2].imshow(counts, cmap="Blues")
    places = np.arange(0, CLUSTERS, 5)
    planes[2].set(xlabel="component", ylabel="cluster", xticks=places, yticks=places)
    planes[2].set_title(f"{counts.sum():,} embeddings")
    figure.colorbar(image, ax=planes[2], shrink=0.8)
    return figure


def draw_households(axes, mixture, x, women):
    """Draw the households in a triangle, in the colour of their component, and lines of equal density."""
    steps = np.linspace(0, 1, 121)
    a, b = np.meshgrid(steps, steps)
    inside = a + b <= 1
    squares = np.stack([1 - a - b, a, b], -1)[inside]
    directions = np.sqrt(np.maximum(squares, 1e-9)).astype(np.float32)
    heights = np.asarray(mixture.log_prob(directions))
    places = flat(directions)
    axes.tricontour(*places.T, heights, np.arange(-2, 4.0), colors=INK, linewidths=0.6)
    of = np.asarray(jnp.argmax(mixture.responsibilities(x), -1))
    order = np.argsort(-np.asarray(mixture.probs))
    for place, j in enumerate(order):
        for sex, marker in ((women, "o"), (~women, "^")):
            chosen = flat(x[(of == j) & sex]).T
            axes.plot(*chosen, marker, color=COLORS[place], markersize=6)
    axes.plot(*flat(np.eye(3)[[0, 1, 2, 0]]).T, color=GREY, linewidth=1)
    for name, corner, side in zip(
        NAMES, flat(np.eye(3)), ("right", "left", "center"), strict=True
    ):
        axes.annotate(name, corner, ha=side, va="bottom" if side == "center" else "top")
    axes.plot([], [], "o", color=INK, label="women")
    axes.plot([], [], "^", color=INK, label="men")
    axes.legend(frameon=False, loc="upper left")
    axes.set(aspect="equal", title="40 households")
    axes.set_axis_off()


def main(arguments=None):
    """Fit both data sets, print the tables and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    numbers = (1, 2, 3) if options.quick else NUMBERS
    count = 5_000 if options.quick else 100_000

    x, women = households()
    found = fits(x, numbers)
    criteria = {case: bic(mixture, x, case[1]) for case, mixture in found.items()}
    best = found[min(numbers, key=lambda number: criteria[number, False]), False]
    print(*bic_table(criteria, numbers), "", sep="\n")
    print(*component_table(best, x, women), "", sep="\n")

    vectors, labels = embeddings(jax.random.key(0), count)
    begun = time.perf_counter()
    mixture = Mixture.fit(vectors, VonMisesFisher, number=CLUSTERS)
    seconds = time.perf_counter() - begun
    counts = confusion(most_likely(mixture, vectors), labels)
    right = counts.max(1).sum() / count
    fitted = np.asarray(mixture.components.concentration)
    print(
        f"{count:,} embeddings of dimension {DIMENSION}: {right:.1%} in the component of their cluster;\n"
        f"fitted concentrations {fitted.min():.0f} to {fitted.max():.0f}, true concentration {concentration_of(COSINE):.0f}"
    )
    print(f"fitted in {seconds:.1f} s", file=sys.stderr)
    if options.out:
        with settings():
            write(picture(best, x, women, criteria, numbers, counts), options.out)


if __name__ == "__main__":
    main()
