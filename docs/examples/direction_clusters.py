"""Cluster directions by mixtures of von Mises-Fisher distributions: expenses of households, and embeddings.

``python -m docs.examples.direction_clusters --out picture.svg`` prints the tables and
draws the picture of docs/direction-clusters.md.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from docs.examples.drawing import COLORS, GREY, INK, draw, parser, table
from jax_von_mises import Mixture, VonMisesFisher

# Expenses of 20 single women and 20 single men in Hong Kong dollars, from D. J. Hand et
# al., "A Handbook of Small Data Sets", 1994; data set `household` of R's HSAUR2.
DATA = Path(__file__).with_name("household.csv")
NAMES = ("housing", "food", "service")
# Embeddings: clusters, dimension, and the mean cosine to the centre of a cluster.
CLUSTERS, DIMENSION, COSINE = 20, 384, 0.6
CONCENTRATION = COSINE * (DIMENSION - COSINE**2) / (1 - COSINE**2)  # nearly


def households():
    """Return the shares of the expenses as unit vectors, and whether each person is a woman."""
    rows = np.loadtxt(DATA, str, delimiter=",", skiprows=1)
    expenses = rows[:, :3].astype(np.float32)
    unit = expenses / np.linalg.norm(expenses, axis=1, keepdims=True)
    return unit, rows[:, 3] == "female"


def bic(mixture, x, tied):
    """Return the Bayesian information criterion of a mixture fitted to directions `x`; smaller is better."""
    number, d = mixture.logits.shape[-1], x.shape[1]
    return float(mixture.bic(x, parameters=number * d if tied else None))


def fits(x, numbers):
    """Return the fitted mixtures by (number of components, tied)."""
    return {
        (number, tied): Mixture.fit(
            x, VonMisesFisher, number=number, tied=tied, largest_concentration=500.0
        )
        for number in numbers
        for tied in (False, True)
    }


def embeddings(key, count):
    """Return made embeddings, unit vectors, and the cluster of each."""
    centre_key, label_key, key = jax.random.split(key, 3)
    centres = jax.random.normal(centre_key, (CLUSTERS, DIMENSION))
    labels = jax.random.randint(label_key, (count,), 0, CLUSTERS)
    clusters = VonMisesFisher(centres, CONCENTRATION)
    return clusters[labels].sample(key), np.asarray(labels)


@jax.jit
def most_likely(mixture, x):
    """Return the most likely component of each direction."""
    parts = mixture.components
    constants = parts.log_prob(parts.mode()) - parts.concentration
    return jnp.argmax(x @ parts.natural.T + constants + mixture.log_weights(), -1)


def bic_table(criteria, numbers):
    """Return the table of BIC values; the smallest of a column is bold."""
    rows = [[str(number)] for number in numbers]
    for tied in (False, True):
        best = min(numbers, key=lambda number, tied=tied: criteria[number, tied])
        for number, row in zip(numbers, rows, strict=True):
            mark = "**" * (number == best)
            row.append(f"{mark}{criteria[number, tied]:.1f}{mark}")
    return table(["components", "own concentrations", "one concentration"], rows)


def component_table(mixture, of, women):
    """Return the table of components, with the number of women and men in each."""
    rows = []
    for j in range(len(mixture.probs)):
        part = mixture.components[j]
        cells = [f"{mixture.probs[j]:.2f}", f"{part.concentration:.0f}"]
        cells += [f"{value:.2f}" for value in part.mean_direction]
        rows.append(
            [*cells, *(str(np.sum((of == j) & sex)) for sex in (women, ~women))]
        )
    return table(["weight", "concentration", *NAMES, "women", "men"], rows)


def flat(x):
    """Return places in a triangle whose corners are the three axes; directions have the squares as weights."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
    return (np.square(x) @ corners).T


def picture(mixture, x, of, women):
    """Return the figure: the households in a triangle, in the colours of their components, and lines of equal density."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    squares = np.random.default_rng(0).dirichlet((1, 1, 1), 5_000)
    directions = np.sqrt(squares).astype(np.float32)
    heights = mixture.log_prob(directions)
    axes.tricontour(*flat(directions), heights, np.arange(-2, 4.0), colors=INK)
    for j in range(len(mixture.probs)):
        for sex, marker, name in ((women, "o", "women"), (~women, "^", "men")):
            chosen = (of == j) & sex
            if chosen.any():
                label = f"{name}: {chosen.sum()}"
                axes.plot(*flat(x[chosen]), marker, color=COLORS[j], label=label)
    axes.plot(*flat(np.eye(3)[[0, 1, 2, 0]]), color=GREY, linewidth=1)
    for name, corner in zip(NAMES, flat(np.eye(3)).T, strict=True):
        axes.annotate(
            name, corner, ha="center", va="top" if corner[1] == 0 else "bottom"
        )
    axes.legend(loc="upper left")
    axes.set(aspect="equal", title="40 households")
    axes.set_axis_off()
    return figure


def main(arguments=None):
    """Fit both data sets, print the tables and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    numbers, count = ((1, 2, 3), 5_000) if options.quick else (range(1, 6), 100_000)
    x, women = households()
    found = fits(x, numbers)
    criteria = {case: bic(mixture, x, case[1]) for case, mixture in found.items()}
    best = found[min(numbers, key=lambda number: criteria[number, False]), False]
    of = np.asarray(best.predict(x))
    print(bic_table(criteria, numbers), component_table(best, of, women), sep="\n\n")

    vectors, labels = embeddings(jax.random.key(0), count)
    mixture = Mixture.fit(vectors, VonMisesFisher, number=CLUSTERS)
    counts = np.zeros((CLUSTERS, CLUSTERS), int)
    np.add.at(counts, (labels, np.asarray(most_likely(mixture, vectors))), 1)
    fitted = np.asarray(mixture.components.concentration)
    right = counts.max(1).sum() / count
    print(f"\n{right:.1%} of {count:,} embeddings in the component of their cluster;")
    print(f"fitted concentrations {fitted.min():.0f} to {fitted.max():.0f}", end=", ")
    print(f"true concentration {CONCENTRATION:.0f}")
    draw(options.out, picture, best, x, of, women)


if __name__ == "__main__":
    main()
