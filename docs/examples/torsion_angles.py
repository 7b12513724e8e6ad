"""Fit mixtures of dependent pairs to measured torsion angles, and compare them with mixtures of independent angles.

``python -m docs.examples.torsion_angles --out picture.svg`` prints the tables and draws
the picture of docs/torsion-angles.md. Another run on the same machine gives the same
file, byte for byte. The picture needs Matplotlib; ``--structures`` needs Biopython.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from docs.examples.drawing import COLORS, INK, parser, settings, write
from jax_von_mises import (
    Mixture,
    SineBivariateVonMises,
    Torus,
    VonMises,
    initialize_compilation_cache,
)

__all__ = ["main"]

# phi and psi in degrees, from eight chains of the entries 2GTL and 7OK9 of the Protein
# Data Bank. Its data are in the public domain (CC0).
DATA = Path(__file__).with_name("torsion_angles.csv")
FREE = {"independent": 4, "dependent": 5}  # parameters of a component
NUMBERS, STARTS, STEPS = (1, 2, 3, 4, 5, 6), 4, 150
WIDE = 4.0  # concentration of all components at the start, 30 degrees
NARROWEST = 500.0  # largest concentration, 2.6 degrees
BLOCKS = 62  # of successive residues, for standard errors, since neighbouring residues have similar angles
LEVELS = 10.0 ** np.arange(-6, -2.5, 0.5)  # of the density, per square degree

# ------------------------------------------------------------------------------------------------
# the data


def measured():
    """Return phi and psi in radians of the committed residues, chain by chain."""
    degrees = np.loadtxt(DATA, delimiter=",", skiprows=1, usecols=(3, 4))
    return np.deg2rad(degrees).astype(np.float32)


def read_structure(path):
    """Return phi and psi in radians of all residues with both angles in a PDB or mmCIF file."""
    from Bio import PDB

    mmcif = path.suffix in (".cif", ".mmcif")
    reader = (PDB.MMCIFParser if mmcif else PDB.PDBParser)(QUIET=True)
    model = next(iter(reader.get_structure(path.stem, path)))
    peptides = PDB.PPBuilder().build_peptides(model)
    pairs = [pair for peptide in peptides for pair in peptide.get_phi_psi_list()]
    return np.float32([pair for pair in pairs if None not in pair])


def divide(pairs):
    """Return every other residue, for the fit, and the same number of residues between them, which are held out."""
    even = len(pairs) // 2 * 2
    return pairs[:even:2], pairs[1:even:2]


# ------------------------------------------------------------------------------------------------
# the fit


def start(key, pairs, numbers=NUMBERS, starts=STARTS):
    """Return mixtures (numbers, starts) of independent angles, centred at residues picked at random.

    All mixtures have the largest number of components. Unused components have weight 0,
    which the fit does not change.
    """
    shape = (len(numbers), starts, max(numbers))
    used = np.arange(max(numbers)) < np.array(numbers)[:, None, None]
    logits = jnp.broadcast_to(jnp.where(used, 0.0, -jnp.inf), shape)
    places = jax.random.choice(key, pairs, shape)
    angles = VonMises(places, jnp.full(places.shape, WIDE))
    return Mixture(logits=logits, components=Torus(angles))


def fit(mixtures, pairs):
    """Fit each mixture (numbers, starts) to `pairs`, starting from its parameters."""
    return Mixture.fit(
        np.broadcast_to(pairs, (*mixtures.batch_shape, *pairs.shape)),
        mixtures,
        axis=2,  # of the residues
        steps=STEPS,
        tolerance=1e-5,
        largest_concentration=NARROWEST,
    )


def coupled(mixtures):
    """Convert mixtures of independent angles to mixtures of dependent angles with correlation 0."""
    angles = mixtures.components.components
    phi, psi = np.moveaxis(angles.loc, -1, 0)
    k_phi, k_psi = np.moveaxis(angles.concentration, -1, 0)
    pairs = SineBivariateVonMises(phi, psi, k_phi, k_psi, correlation=0 * phi)
    return Mixture(logits=mixtures.logits, components=pairs)


@jax.jit
def log_density(mixtures, pairs):
    """Return the log density of each pair in each mixture, as an array (pairs, numbers, starts)."""
    return mixtures.log_prob(pairs[:, None, None])


def best_start(mixtures, pairs, held_out):
    """Return the most likely mixture for each number of components, and its log densities at `pairs` and `held_out`."""
    fitted = np.asarray(log_density(mixtures, pairs))
    best = np.argmax(fitted.mean(0), axis=1)
    places = np.arange(len(best)), best
    unseen = np.asarray(log_density(mixtures, held_out))
    chosen = jax.tree.map(lambda leaf: leaf[places], mixtures)
    return chosen, fitted[:, *places], unseen[:, *places]


# ------------------------------------------------------------------------------------------------
# the scores


def bic(name, fitted, numbers=NUMBERS):
    """Return the Bayesian information criterion in nats per residue, from the log densities `fitted`."""
    numbers = np.array(numbers)
    free = numbers - 1 + numbers * FREE[name]
    return free * np.log(len(fitted)) / (2 * len(fitted)) - fitted.mean(0)


def mean_gain(gains):
    """Return the mean gain per residue and its standard error from block means."""
    blocks = np.array_split(gains, min(BLOCKS, len(gains)))
    means = [block.mean() for block in blocks]
    return gains.mean(), np.std(means, ddof=1) / np.sqrt(len(means))


def psi_of_sheets(mixture, pairs):
    """Return the circular and the arithmetic mean of psi, in degrees, for the largest component near sheets."""
    near = np.cos(np.asarray(mixture.components.psi_loc) - np.deg2rad(140)) > 0.5
    sheet = np.argmax(np.where(near, mixture.log_weights(), -np.inf))
    weights = np.asarray(jax.jit(Mixture.responsibilities)(mixture, pairs))[:, sheet]
    psi = pairs[:, 1]
    circular = np.angle(np.sum(weights * np.exp(1j * psi)))
    return np.rad2deg(circular), np.rad2deg(np.average(psi, weights=weights))


# ------------------------------------------------------------------------------------------------
# the report


def table(head, rows):
    """Return the lines of a Markdown table of numbers."""
    lines = [head, ["---:"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def score_table(criteria, unseen, numbers):
    """Return the lines of the table of scores by number of components; the lowest BIC is bold."""
    head = ["components"]
    for name in criteria:
        head += [f"BIC, {name}", "held out"]
    rows = []
    for place, number in enumerate(numbers):
        row = [str(number)]
        for name, criterion in criteria.items():
            cell = f"{criterion[place]:.3f}"
            row += [f"**{cell}**" if place == np.argmin(criterion) else cell]
            row += [f"{unseen[name][:, place].mean():.3f}"]
        gain, error = mean_gain((unseen["dependent"] - unseen["independent"])[:, place])
        rows.append([*row, f"{gain:+.3f} ± {error:.3f}"])
    return table([*head, "gain"], rows)


def component_table(mixture):
    """Return the lines of the table of components, ordered by weight."""
    parts = jax.tree.map(np.asarray, mixture.components)
    weights = np.exp(mixture.log_weights())
    head = ["weight", "φ", "ψ", "κ of φ", "κ of ψ", "λ", "λ / √(κκ)"]
    rows = []
    for j in np.argsort(-weights):
        k_phi, k_psi = parts.phi_concentration[j], parts.psi_concentration[j]
        row = [f"{weights[j]:.3f}"]
        row += [f"{np.rad2deg(loc[j]):.0f}°" for loc in (parts.phi_loc, parts.psi_loc)]
        row += [f"{value:.1f}" for value in (k_phi, k_psi, parts.correlation[j])]
        rows.append([*row, f"{parts.correlation[j] / np.sqrt(k_phi * k_psi):.2f}"])
    return table(head, rows)


def picture(mixture, residues, criteria, unseen, numbers):
    """Return the figure: residues, the same number of draws, and the held-out likelihood."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.6), layout="constrained")
    planes = figure.subplots(1, 3)
    draw = jax.jit(lambda mixture, key: mixture.sample(key, (len(residues),)))
    drawn = np.asarray(draw(mixture, jax.random.key(1)))
    draw_plane(planes[0], residues, mixture, f"{len(residues):,} residues")
    draw_plane(planes[1], drawn, mixture, f"{len(residues):,} draws from the mixture")
    for (name, criterion), colour in zip(criteria.items(), COLORS, strict=False):
        heights, best = unseen[name].mean(0), np.argmin(criterion)
        planes[2].plot(numbers, heights, "o-", color=colour, label=f"{name} angles")
        ring = {"color": colour, "markersize": 12, "fillstyle": "none"}
        planes[2].plot(numbers[best], heights[best], "o", **ring)
    planes[2].plot([], [], "o", **ring | {"color": INK}, label="lowest BIC")
    planes[2].set(xlabel="components", ylabel="nats per residue", xticks=numbers)
    planes[2].set_title("Held-out log likelihood")
    planes[2].legend(frameon=False, loc="lower right")
    planes[2].grid(True)
    return figure


def draw_plane(axes, points, mixture, title):
    """Draw points in the plane of phi and psi, and lines of equal density."""
    degrees = np.linspace(-180, 180, 181)
    plane = np.deg2rad(np.stack(np.meshgrid(degrees, degrees), axis=-1))
    heights = np.asarray(jax.jit(Mixture.prob)(mixture, plane.astype(np.float32)))
    heights = heights * (np.pi / 180) ** 2
    # Draw the points as an image, because two thousand paths would make a large file.
    axes.scatter(*np.rad2deg(points).T, s=5, c=COLORS[1], linewidths=0, rasterized=True)
    axes.contour(degrees, degrees, heights, LEVELS, colors=INK, linewidths=0.7)
    axes.set(xlim=(-180, 180), ylim=(-180, 180), aspect="equal")
    axes.set(xlabel="φ, degrees", ylabel="ψ, degrees", title=title)
    axes.set_xticks(np.arange(-180, 181, 60))
    axes.set_yticks(np.arange(-180, 181, 60))


def main(arguments=None):
    """Fit mixtures of both kinds, print the tables and draw the picture."""
    command_line = parser(__doc__)
    command_line.add_argument(
        "--structures",
        type=Path,
        nargs="+",
        help="PDB or mmCIF files to fit instead of the committed residues",
    )
    options = command_line.parse_args(arguments)
    initialize_compilation_cache()  # later runs start faster
    if options.structures:
        residues = np.concatenate([read_structure(path) for path in options.structures])
    else:
        residues = measured()
    pairs, held_out = divide(residues)
    numbers, starts = ((2, 3), 2) if options.quick else (NUMBERS, STARTS)

    tori = fit(start(jax.random.key(0), pairs, numbers, starts), pairs)
    criteria, unseen = {}, {}
    for name, tried in (
        ("independent", tori),
        ("dependent", fit(coupled(tori), pairs)),
    ):
        mixtures, fitted, unseen[name] = best_start(tried, pairs, held_out)
        criteria[name] = bic(name, fitted, numbers)
    best = np.argmin(criteria["dependent"])
    # Remove the components of weight 0.
    mixture = jax.tree.map(lambda leaf: leaf[best, : numbers[best]], mixtures)
    circular, ordinary = psi_of_sheets(mixture, pairs)

    print(*score_table(criteria, unseen, numbers), "", sep="\n")
    print(*component_table(mixture), "", sep="\n")
    print(
        f"mean psi of the sheets: {circular:.1f} degrees on the circle, {ordinary:.1f} as a number"
    )
    if options.out:
        with settings():
            write(picture(mixture, residues, criteria, unseen, numbers), options.out)


if __name__ == "__main__":
    main()
