"""Fit mixtures of dependent pairs to measured torsion angles, and compare them with mixtures of independent angles.

``python -m docs.examples.torsion_angles --out picture.svg`` prints the tables and draws
the picture of docs/torsion-angles.md.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jax_von_mises as jvm
from docs.examples.drawing import COLORS, INK, draw, parser, table

# phi and psi in degrees, from eight chains of the entries 2GTL and 7OK9 of the Protein
# Data Bank. Its data are in the public domain (CC0).
DATA = Path(__file__).with_name("torsion_angles.csv")
FREE = {"independent": 4, "dependent": 5}  # parameters of a component
BLOCKS = 62  # of successive residues, since neighbouring residues have similar angles


def measured():
    """Return phi and psi in radians of the residues, chain by chain."""
    degrees = np.loadtxt(DATA, delimiter=",", skiprows=1, usecols=(3, 4))
    return np.deg2rad(degrees).astype(np.float32)


def divide(pairs):
    """Return every other residue, for the fit, and the same number of residues between them, which are held out."""
    return pairs[:-1:2], pairs[1::2]


def start(key, pairs, numbers, starts):
    """Return mixtures (numbers, starts) of independent angles, centred at residues picked at random."""
    # All have the largest number of components; the fit does not change a weight of 0.
    shape = (len(numbers), starts, max(numbers))
    used = np.arange(max(numbers)) < np.array(numbers)[:, None, None]
    logits = jnp.broadcast_to(jnp.where(used, 0.0, -jnp.inf), shape)
    places = jax.random.choice(key, pairs, shape)
    angles = jvm.VonMises(places, jnp.full(places.shape, 4.0))
    return jvm.Mixture(logits=logits, components=jvm.Torus(angles))


def fit(mixtures, pairs):
    """Fit each mixture (numbers, starts) to `pairs`, starting from its parameters."""
    data = np.broadcast_to(pairs, (*mixtures.batch_shape, *pairs.shape))
    limits = {"steps": 150, "tolerance": 1e-5, "largest_concentration": 500.0}
    return jvm.Mixture.fit(data, mixtures, axis=2, **limits)


def coupled(mixtures):
    """Convert mixtures of independent angles to mixtures of dependent angles with correlation 0."""
    angles = mixtures.components.components
    phi, psi = np.moveaxis(angles.loc, -1, 0)
    k_phi, k_psi = np.moveaxis(angles.concentration, -1, 0)
    pairs = jvm.SineBivariateVonMises(phi, psi, k_phi, k_psi, correlation=0 * phi)
    return jvm.Mixture(logits=mixtures.logits, components=pairs)


@jax.jit
def log_density(mixtures, pairs):
    """Return the log density of each pair in each mixture, as an array (pairs, numbers, starts)."""
    return mixtures.log_prob(pairs[:, None, None])


def best_start(mixtures, pairs, held_out):
    """Return the most likely mixture for each number of components, and its log densities at `pairs` and `held_out`."""
    fitted, unseen = (np.asarray(log_density(mixtures, x)) for x in (pairs, held_out))
    best = np.argmax(fitted.mean(0), axis=1)
    places = np.arange(len(best)), best
    chosen = jax.tree.map(lambda leaf: leaf[places], mixtures)
    return chosen, fitted[:, *places], unseen[:, *places]


def mean_gain(gains):
    """Return the mean gain per residue and its standard error from block means."""
    blocks = np.array([block.mean() for block in np.array_split(gains, BLOCKS)])
    return gains.mean(), blocks.std(ddof=1) / np.sqrt(BLOCKS)


def score_table(criteria, unseen, numbers):
    """Return the table of scores by number of components; the lowest BIC is bold."""
    rows = [[str(number)] for number in numbers]
    for name, criterion in criteria.items():
        for place, row in enumerate(rows):
            mark = "**" if place == np.argmin(criterion) else ""
            row += [f"{mark}{criterion[place]:.3f}{mark}"]
            row += [f"{unseen[name][:, place].mean():.3f}"]
    gains = unseen["dependent"] - unseen["independent"]
    for row, gain in zip(rows, gains.T, strict=True):
        row.append("{:+.3f} ± {:.3f}".format(*mean_gain(gain)))
    heads = [head for name in criteria for head in (f"BIC, {name}", "held out")]
    return table(["components", *heads, "gain"], rows)


def component_table(mixture):
    """Return the table of components, ordered by weight."""
    parts = mixture.components
    k_phi, k_psi = parts.phi_concentration, parts.psi_concentration
    ratio = parts.correlation / np.sqrt(k_phi * k_psi)
    phi, psi = np.rad2deg(parts.phi_loc), np.rad2deg(parts.psi_loc)
    columns = mixture.probs, phi, psi, k_phi, k_psi, parts.correlation, ratio
    text = "{:.3f} {:.0f}° {:.0f}° {:.1f} {:.1f} {:.1f} {:.2f}"
    rows = np.transpose(columns)[np.argsort(-mixture.probs)]
    head = ["weight", "φ", "ψ", "κ of φ", "κ of ψ", "λ", "λ / √(κκ)"]
    return table(head, [text.format(*row).split() for row in rows])


def picture(mixture, residues):
    """Return the figure: residues, and the same number of draws, with lines of equal density."""
    from matplotlib.figure import Figure

    degrees = np.linspace(-180, 180, 181)
    plane = np.deg2rad(np.stack(np.meshgrid(degrees, degrees), axis=-1))
    heights = jax.jit(jvm.Mixture.log_prob)(mixture, plane.astype(np.float32))
    drawn = mixture.sample(jax.random.key(1), (len(residues),))
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    shown = {"residues": residues, "draws": drawn}.items()
    for axes, (name, points) in zip(figure.subplots(1, 2), shown, strict=True):
        # As an image, because two thousand paths would make a large file.
        axes.scatter(*np.rad2deg(points).T, 5, COLORS[1], linewidths=0, rasterized=True)
        axes.contour(degrees, degrees, heights, np.arange(-6, 2.0), colors=INK)
        axes.set(title=f"{len(points):,} {name}", aspect="equal")
        axes.set(xlabel="φ, degrees", ylabel="ψ, degrees")
    return figure


def main(arguments=None):
    """Fit mixtures of both kinds, print the tables and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    jvm.initialize_compilation_cache()  # later runs start faster
    residues = measured()
    pairs, held_out = divide(residues)
    numbers, starts = ((2, 3), 2) if options.quick else ((1, 2, 3, 4, 5, 6), 4)
    tori = fit(start(jax.random.key(0), pairs, numbers, starts), pairs)
    found = {"independent": tori, "dependent": fit(coupled(tori), pairs)}
    criteria, unseen = {}, {}
    for name, tried in found.items():
        mixtures, fitted, unseen[name] = best_start(tried, pairs, held_out)
        free = np.array(numbers) * (1 + FREE[name]) - 1
        criteria[name] = free * np.log(len(pairs)) / (2 * len(pairs)) - fitted.mean(0)
    best = np.argmin(criteria["dependent"])
    mixture = jax.tree.map(lambda leaf: leaf[best, : numbers[best]], mixtures)
    print(score_table(criteria, unseen, numbers), component_table(mixture), sep="\n\n")
    draw(options.out, picture, mixture, residues)


if __name__ == "__main__":
    main()
