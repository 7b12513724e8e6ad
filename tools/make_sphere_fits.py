"""Make `jax_von_mises/numerics/sphere/fits.npz`, the coefficients of `fits` for up to 16 dimensions.

Run from the repository root, in the test environment (about ten seconds)::

    python -m tools.make_sphere_fits            # writes the file
    python -m tools.make_sphere_fits --check    # only reports whether the committed file is current

The file has all coefficients that float32 programs use. In float64, it has those of draws and densities, since those of
derivatives, probabilities and quantiles are five times as many. Another machine may compute other last digits, and
directions in float32 would then change with the file, so write it again only if the fits themselves change.
"""

import argparse
import itertools

import numpy as np

from jax_von_mises.numerics.sphere import fits, shipped

LARGEST_DIMENSION = 16
SIDES = (True, False)
# Largest difference between the file and fits computed on another machine. Those of the guesses are ill-conditioned.
TOLERANCE = 1e-6


def entries(n):
    """Return the entries of dimension n + 1 by name, each with the dtype to which it is rounded."""
    found = {}
    for dtype in ("float32", "float64"):
        series = fits.computed_fits(n, dtype)
        rows = series.peak, series.log_peak, series.below
        found[fits.fits_name(n, dtype)] = dtype, (rows, (series.log_area,))
        if n < 3:  # closed forms replace the others
            continue
        wide = dtype == "float64"
        tails = [fits.SMALLEST_WORD[dtype], *([] if wide else [fits.SMALLEST_QUANTILE[dtype]])]
        for smallest, near in itertools.product(tails, SIDES):
            guess = fits.computed_guess(n, smallest, near)
            numbers = guess.largest_level, guess.error
            found[fits.guess_name(n, smallest, near)] = dtype, (guess.table, numbers)
            for order in (0,) if wide else (0, 1):
                surface = fits.computed_surface(n, dtype, smallest, near, order)
                name = fits.surface_name(n, dtype, smallest, near, order)
                found[name] = dtype, (surface.rows, (surface.reach,))
    return found


def difference(name, made):
    """Return the difference of a new entry from the file, relative to the largest number of each row."""
    (rows, numbers), found = made[1], shipped.find(name)
    if found is None or [len(row) for row in rows] != [len(row) for row in found[0]]:
        return np.inf
    pairs = zip((*rows, numbers), (*found[0], found[1]), strict=True)
    return max(np.abs(np.subtract(a, b)).max() / max(np.abs(a).max(), 1e-3) for a, b in pairs)


def main(arguments=None):
    """Write the file, or compare it with new fits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only report whether the committed file is current")
    check = parser.parse_args(arguments).check
    made = {}
    for n in range(1, LARGEST_DIMENSION):
        made.update(entries(n))
    if not check:
        shipped.write(made, shipped.FILE)
        print(f"{shipped.FILE}: {len(made)} fits, {shipped.FILE.stat().st_size} bytes")
        return
    old = [name for name, entry in made.items() if difference(name, entry) > TOLERANCE]
    if old or set(made) != set(shipped.contents()[0]):
        raise SystemExit(f"{shipped.FILE} is not current: {', '.join(old) or 'it has other names'}")
    print(f"{shipped.FILE} is current")


if __name__ == "__main__":
    main()
