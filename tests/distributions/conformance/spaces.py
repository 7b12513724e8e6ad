"""Spaces of draws, as images of a box: the volume of a set is that of its part of the box, up to a constant."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Space:
    """A space whose points have places in the box [0, 1)^m, which equal bins divide."""

    axes: int
    bins: int
    """How many bins an axis has."""
    order: int
    """The number of nodes of the Gauss rule in each bin, along each axis."""
    volume: float
    """Volume of the space in the units of the density."""
    point: Callable[[np.ndarray], np.ndarray]
    """Maps places, along the last axis, to points."""
    place: Callable[[np.ndarray], np.ndarray]
    """Maps points to places."""

    @property
    def number_of_bins(self) -> int:
        """How many bins the box has."""
        return self.bins**self.axes

    def nodes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the nodes of a product of Gauss rules in all bins, their weights, and the bins in which they lie."""
        z, w = np.polynomial.legendre.leggauss(self.order)
        one = ((np.arange(self.bins)[:, None] + (z + 1) / 2) / self.bins).ravel()
        places = np.stack(np.meshgrid(*[one] * self.axes, indexing="ij"), -1).reshape(-1, self.axes)
        weights = np.tile(w / (2 * self.bins), self.bins)
        product = np.prod(np.meshgrid(*[weights] * self.axes, indexing="ij"), 0).ravel()
        points = self.point(places)
        return points, self.volume * product, self.number(self.place(points))

    def number(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers of the bins in which places lie."""
        each = np.floor(places * self.bins).astype(int) % self.bins
        return np.ravel_multi_index(tuple(each.T), (self.bins,) * self.axes)


def turned(x: np.ndarray) -> np.ndarray:
    """Return the place of an angle."""
    return np.remainder(x / (2 * np.pi) + 0.5, 1)


def angle(place: np.ndarray) -> np.ndarray:
    """Return the angle at a place."""
    return 2 * np.pi * (place - 0.5)


def sphere_point(place: np.ndarray) -> np.ndarray:
    """Return the point with a height and a longitude, of which both are uniform."""
    z, longitude = 2 * place[:, 0] - 1, angle(place[:, 1])
    radius = np.sqrt(1 - z * z)
    return np.stack([radius * np.cos(longitude), radius * np.sin(longitude), z], -1)


def sphere_place(point: np.ndarray) -> np.ndarray:
    """Return the height and the longitude of a point."""
    height = np.clip((point[:, 2] + 1) / 2, 0, 1 - 1e-9)
    return np.stack([height, turned(np.arctan2(point[:, 1], point[:, 0]))], -1)


def rotation_point(place: np.ndarray) -> np.ndarray:
    """Return the quaternion of which two pairs of components have uniform angles and a uniform squared length."""
    first, second = np.sqrt(1 - place[:, 0]), np.sqrt(place[:, 0])
    a, b = angle(place[:, 1]), angle(place[:, 2])
    return np.stack([first * np.cos(a), first * np.sin(a), second * np.cos(b), second * np.sin(b)], -1)


def rotation_place(point: np.ndarray) -> np.ndarray:
    """Return the place of a rotation, the same for q and -q."""
    w, x, y, z = np.where(point[:, :1] < 0, -point, point).T
    share = np.clip(y * y + z * z, 0, 1 - 1e-9)
    return np.stack([share, turned(np.arctan2(x, w)), turned(np.arctan2(z, y))], -1)


CIRCLE = Space(1, 64, 32, 2 * math.pi, lambda u: angle(u[:, 0]), lambda x: turned(x)[:, None])
TORUS = Space(2, 8, 12, (2 * math.pi) ** 2, angle, turned)
SPHERE = Space(2, 8, 12, 4 * math.pi, sphere_point, sphere_place)
ROTATIONS = Space(3, 6, 8, 1.0, rotation_point, rotation_place)
