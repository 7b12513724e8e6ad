"""Mixtures of dependent pairs, fitted to measured torsion angles and compared with independent angles.

``python -m docs.examples.torsion_angles --out picture.svg`` prints the tables of the
page *Torsion angles* and draws its picture; the same machine gives the same file, byte
for byte. Needs Matplotlib for the picture, and Biopython for ``--structures``.
"""

from pathlib import Path

import jax
import numpy as np

from docs.examples.drawing import COLORS, INK, parser, settings, write
from jax_von_mises import Mixture, SineBivariateVonMises, Torus

__all__ = ["main"]

# phi and psi in degrees of eight chains of the entries 2GTL and 7OK9 of the Protein
# Data Bank, whose data are in the public domain (CC0).
DATA = Path(__file__).with_name("torsion_angles.csv")
KINDS = {"independent": Torus, "dependent": SineBivariateVonMises}
FREE = {"independent": 4, "dependent": 5}  # parameters of a component
NUMBERS = (1, 2, 3, 4, 5, 6)  # of components
STARTS, STEPS = 3, 60
NARROWEST = 500.0  # largest concentration, a standard deviation of 2.6 degrees
BLOCKS = 62  # of successive residues, for standard errors
LEVELS = 10.0 ** np.arange(-6, -2.5, 0.5)  # of the density, per square degree
likelihood = jax.jit(lambda mixture, pairs: mixture.log_prob(pairs).mean())


def measured():
    """Return phi and psi in radians of the committed residues, chain by chain."""
    degrees = np.loadtxt(DATA, delimiter=",", skiprows=1, usecols=(3, 4))
    return np.deg2rad(degrees).astype(np.float32)


def read_structure(path):
    """Return phi and psi in radians of all residues in a PDB or mmCIF file that have both."""
    from Bio import PDB

    mmcif = path.suffix in (".cif", ".mmcif")
    reader = (PDB.MMCIFParser if mmcif else PDB.PDBParser)(QUIET=True)
    model = next(iter(reader.get_structure(path.stem, path)))
    peptides = PDB.PPBuilder().build_peptides(model)
    pairs = [pair for peptide in peptides for pair in peptide.get_phi_psi_list()]
    return np.float32([pair for pair in pairs if None not in pair])


def divide(pairs):
    """Return every other residue, to fit, and the others, held out; as many of each."""
    even = len(pairs) // 2 * 2
    return pairs[:even:2], pairs[1:even:2]


def compare(pairs, held_out, numbers=NUMBERS, starts=STARTS, steps=STEPS):
    """Fit mixtures of each kind; return them with their BIC and held-out likelihood."""
    found = {}
    for name, kind in KINDS.items():
        for number in numbers:
            mixture = Mixture.fit(
                pairs,
                kind,
                number=number,
                starts=starts,
                steps=steps,
                largest_concentration=NARROWEST,
            )
            free = number - 1 + number * FREE[name]
            penalty = free * np.log(len(pairs)) / (2 * len(pairs))
            bic = penalty - float(likelihood(mixture, pairs))
            found[name, number] = mixture, bic, float(likelihood(mixture, held_out))
    return found


def lowest(found, name):
    """Return the number of components with the lowest BIC."""
    numbers = [number for kind, number in found if kind == name]
    return min(numbers, key=lambda number: found[name, number][1])


def gain(first, second, pairs):
    """Return the mean gain in log density of `second` over `first`, and its standard error.

    Neighbours along a chain have similar angles, so the standard error is that of the
    means of blocks of successive residues.
    """
    gains = np.asarray(second.log_prob(pairs) - first.log_prob(pairs))
    means = [block.mean() for block in np.array_split(gains, min(BLOCKS, len(gains)))]
    return gains.mean(), np.std(means, ddof=1) / np.sqrt(len(means))


def psi_of_sheets(mixture, pairs):
    """Return the mean of psi in degrees, on the circle and as a number, of the largest component near sheets."""
    near = np.cos(np.asarray(mixture.components.psi_loc) - np.deg2rad(140)) > 0.5
    sheet = np.argmax(np.where(near, mixture.log_weights(), -np.inf))
    shares, psi = np.asarray(mixture.responsibilities(pairs))[:, sheet], pairs[:, 1]
    circular = np.angle(np.sum(shares * np.exp(1j * psi)))
    return np.rad2deg(circular), np.rad2deg(np.average(psi, weights=shares))


def tables(found, pairs, held_out):
    """Return lines of Markdown: scores by number of components, the gain of dependence, and the components."""
    best = {name: lowest(found, name) for name in KINDS}
    lines = [
        "| components | BIC, independent | held out | BIC, dependent | held out |",
        "|---:|---:|---:|---:|---:|",
    ]
    for number in sorted({number for _, number in found}):
        cells = [str(number)]
        for name in KINDS:
            cells += [f"{value:.4f}" for value in found[name, number][1:]]
            if number == best[name]:
                cells[-2] = f"**{cells[-2]}**"
        lines.append("| " + " | ".join(cells) + " |")

    first, second = (found[name, best[name]][0] for name in KINDS)
    mean, error = gain(first, second, held_out)
    circular, ordinary = psi_of_sheets(second, pairs)
    lines += [
        "",
        f"{len(pairs)} residues to fit, {len(held_out)} held out",
        f"gain of dependence: {mean:+.4f} nats per held-out residue (standard error {error:.4f})",
        f"mean psi of the sheets: {circular:.1f} degrees on the circle, {ordinary:.1f} as a number",
        "",
        "| weight | φ | ψ | κ of φ | κ of ψ | λ | weighted correlation |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    parts = jax.tree.map(np.asarray, second.components)
    weights = np.exp(second.log_weights())
    for j in np.argsort(-weights):
        k_phi, k_psi = parts.phi_concentration[j], parts.psi_concentration[j]
        cells = (
            f"{weights[j]:.3f}",
            f"{np.rad2deg(parts.phi_loc[j]):.0f}°",
            f"{np.rad2deg(parts.psi_loc[j]):.0f}°",
            f"{k_phi:.1f}",
            f"{k_psi:.1f}",
            f"{parts.correlation[j]:.1f}",
            f"{parts.correlation[j] / np.sqrt(k_phi * k_psi):.2f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def picture(found, pairs, held_out):
    """Make the figure: residues, as many draws, and the held-out likelihood."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.6), layout="constrained")
    planes = figure.subplots(1, 3)
    mixture = found["dependent", lowest(found, "dependent")][0]
    everything = np.concatenate([pairs, held_out])
    drawn = np.asarray(mixture.sample(jax.random.key(0), (len(everything),)))
    draw_plane(planes[0], everything, mixture, f"{len(everything):,} residues")
    draw_plane(planes[1], drawn, mixture, "As many draws from the mixture")
    draw_choice(planes[2], found)
    return figure


def draw_plane(axes, points, mixture, title):
    """Draw points in the plane of phi and psi, and lines of equal density."""
    degrees = np.linspace(-180, 180, 181)
    plane = np.deg2rad(np.stack(np.meshgrid(degrees, degrees), axis=-1))
    heights = np.asarray(jax.jit(Mixture.prob)(mixture, plane.astype(np.float32)))
    heights = heights * (np.pi / 180) ** 2
    # As an image: two thousand paths would make a large file.
    axes.scatter(*np.rad2deg(points).T, s=5, c=COLORS[1], linewidths=0, rasterized=True)
    axes.contour(degrees, degrees, heights, LEVELS, colors=INK, linewidths=0.7)
    axes.set(xlim=(-180, 180), ylim=(-180, 180), aspect="equal")
    axes.set(xlabel="φ, degrees", ylabel="ψ, degrees", title=title)
    axes.set_xticks(np.arange(-180, 181, 60))
    axes.set_yticks(np.arange(-180, 181, 60))


def draw_choice(axes, found):
    """Draw the held-out likelihood against the number of components."""
    numbers = sorted({number for _, number in found})
    for name, colour in zip(KINDS, COLORS, strict=False):
        heights = [found[name, number][2] for number in numbers]
        axes.plot(numbers, heights, "o-", color=colour, label=f"{name} angles")
        taken = lowest(found, name)
        ring = {"color": colour, "markersize": 12, "fillstyle": "none"}
        axes.plot(taken, found[name, taken][2], "o", **ring)
    axes.plot([], [], "o", color=INK, markersize=12, fillstyle="none", label="lowest BIC")
    axes.set(xlabel="components", xticks=numbers, title="Held-out log likelihood")
    axes.set_ylabel("nats per residue")
    axes.legend(frameon=False, loc="lower right")
    axes.grid(True)


def main(arguments=None):
    """Fit mixtures of both kinds, print the tables and draw the picture."""
    options = parser(__doc__)
    options.add_argument(
        "--structures",
        type=Path,
        nargs="+",
        help="PDB or mmCIF files to fit instead of the committed residues",
    )
    given = options.parse_args(arguments)
    if given.structures:
        residues = np.concatenate([read_structure(path) for path in given.structures])
    else:
        residues = measured()
    pairs, held_out = divide(residues)
    less = {"numbers": (2, 3), "starts": 1, "steps": 20} if given.quick else {}
    found = compare(pairs, held_out, **less)
    print(*tables(found, pairs, held_out), sep="\n")
    if given.out:
        with settings():
            write(picture(found, pairs, held_out), given.out)


if __name__ == "__main__":
    main()
