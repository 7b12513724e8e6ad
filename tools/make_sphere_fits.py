"""Make `jax_von_mises/sphere/fits.npz`, the coefficients of `fits` for up to 16 dimensions.

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
from numpy.polynomial.polynomial import polyval

from jax_von_mises.sphere import fits, shipped

LARGEST_DIMENSION = 16
SIDES = (True, False)
# Largest difference between the file and fits computed on another machine, where exponentials have other last digits.
# Guesses, which have errors of a few hundredths, are ill-conditioned.
TOLERANCE = {"float32": 1e-6, "float64": 1e-12, "guess": 1e-3}


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


def agrees(name, made):
    """Return whether a new entry agrees with the file.

    The rows are compared as polynomials on [-1, 1], since the coefficients themselves are ill-conditioned.
    """
    (dtype, (rows, numbers)), found = made, shipped.find(name)
    if found is None or len(rows) != len(found[0]):
        return False
    x = np.cos(np.linspace(0, np.pi, 65))
    ours, theirs = (np.array([polyval(x, row) for row in each]) for each in (rows, found[0]))
    pairs = (ours, theirs), (np.array(numbers), np.array(found[1]))
    tolerance = TOLERANCE.get(name.split()[0], TOLERANCE[dtype])
    return all(np.abs(a - b).max() <= tolerance * max(np.abs(a).max(), 1e-3) for a, b in pairs)


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
    old = [name for name, entry in made.items() if not agrees(name, entry)]
    if old or set(made) != set(shipped.contents()[0]):
        raise SystemExit(f"{shipped.FILE} is not current: {', '.join(old) or 'it has other names'}")
    print(f"{shipped.FILE} is current")


if __name__ == "__main__":
    main()
