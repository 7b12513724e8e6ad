"""Draw the picture of the README: draws of angles, pairs of angles, directions and rotations.

It has no text, so that it can be read on a phone, and no background, for light and dark pages.
"""

import jax
import numpy as np

import jax_von_mises as jvm
from docs.examples import drawing
from docs.examples.drawing import COLORS
from jax_von_mises import rotations

__all__ = ["draw"]

LINE = "#888888"
# The right and the upward direction of the page, for spheres.
PAGE = np.array([[-0.5, 3**0.5 / 2, 0], [-(3**0.5) / 4, -0.25, 3**0.5 / 2]])
DOT = {"linestyle": "none", "marker": "o", "markersize": 2.6, "markeredgewidth": 0}


def angles(axes, key):
    """Draw the counts of angles from a von Mises distribution, outwards from a circle."""
    drawn = jvm.VonMises(0.5, 4.0).sample(key, (1_000_000,))
    counts, edges = np.histogram(drawn, 72, (-np.pi, np.pi))
    axes.bar(
        edges[:-1],
        0.6 * counts / counts.max(),
        0.8 * np.diff(edges),
        bottom=1,
        align="edge",
        color=COLORS[0],
    )
    axes.plot(edges, np.ones_like(edges), color=LINE, linewidth=1)
    axes.set_ylim(0, 1.6)
    axes.axis("off")


def pairs(axes, key):
    """Draw pairs of angles from a bivariate von Mises distribution with two modes, in a square of full turns."""
    drawn = jvm.SineBivariateVonMises(0.0, 0.0, 4.0, 6.0, correlation=7.0).sample(
        key, (2_000,)
    )
    axes.plot(drawn[:, 0], drawn[:, 1], **DOT, color=COLORS[1], alpha=0.6)
    axes.set(
        xticks=[], yticks=[], aspect="equal", xlim=(-np.pi, np.pi), ylim=(-np.pi, np.pi)
    )
    for spine in axes.spines.values():
        spine.set(visible=True, edgecolor=LINE)


def globe(axes, colored):
    """Draw directions, given by colours, on a sphere; those behind it are pale."""
    turn = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(turn), np.sin(turn), color=LINE, linewidth=1)
    for axis in range(3):
        ring = np.insert(np.stack([np.cos(turn), np.sin(turn)]), axis, 0, 0)
        axes.plot(*PAGE @ ring, color=LINE, linewidth=0.5)
    for color, vectors in colored.items():
        front = vectors @ np.cross(*PAGE) > 0
        for chosen, alpha in ((~front, 0.15), (front, 0.6)):
            axes.plot(*PAGE @ vectors[chosen].T, **DOT, color=color, alpha=alpha)
    axes.set(aspect="equal")
    axes.axis("off")


def directions(axes, key):
    """Draw directions from a Kent distribution, and axes around a great circle from a Bingham distribution."""
    kent = jvm.Kent([1.0, 0.0, 1.0], [0.0, 1.0, 0.0], 40.0, 17.0).sample(key, (1_000,))
    girdle = jvm.Bingham.watson([0.3, -0.6, 0.8], -60.0).sample(
        jax.random.fold_in(key, 1), (1_000,)
    )
    globe(axes, {COLORS[3]: np.asarray(girdle), COLORS[2]: np.asarray(kent)})


def frames(axes, key):
    """Draw the axes of rotated frames from a matrix Fisher distribution: uncertain about one axis, and about others less."""
    drawn = rotations.MatrixFisher(np.diag([60.0, 4.0, 4.0])).sample(key, (700,))
    matrices = np.asarray(rotations.to_matrix(drawn))
    globe(axes, {color: matrices[..., axis] for axis, color in enumerate(COLORS[:3])})


def picture():
    """Return the figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.3), layout="constrained", facecolor="none")
    for place, panel in enumerate((angles, pairs, directions, frames), 1):
        kind = "polar" if panel is angles else None
        axes = figure.add_subplot(1, 4, place, projection=kind, facecolor="none")
        panel(axes, jax.random.fold_in(jax.random.key(0), place))
    return figure


def draw(out):
    """Write the picture to a file."""
    drawing.draw(out, picture)
