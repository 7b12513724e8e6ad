"""Make `jax_von_mises/numerics/coefficients.py`, which holds all fitted constants of the package with their errors.

Run from the repository root, in the test environment (about half a minute)::

    python -m tools.make_tables            # writes jax_von_mises/numerics/coefficients.py
    python -m tools.make_tables --check    # only reports whether the committed file is current

`jax_von_mises/von_mises/tail_integral.py` and `jax_von_mises/von_mises/quantile.py` explain what the constants
approximate. The exact values come from `tests/reference.py`, the float64 reference that the tests use as well.
"""

import argparse
import itertools
import pathlib
import re
import textwrap

import mpmath as mp
import numpy as np
from scipy import optimize, special

from tests import reference

TARGET = pathlib.Path(__file__).resolve().parent.parent / "jax_von_mises" / "numerics" / "coefficients.py"
HALF_PI = np.pi / 2
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(e-?\d+)?")


def minimax(function, low, high, degree, fixed=None):
    """Return the polynomial of `degree` nearest to `function` on [low, high] in maximum relative error, and that error.

    The method is Lawson's reweighted least squares on Chebyshev points. `fixed` sets the constant coefficient, for
    approximations that must be exact at 0. The polynomial is returned as its coefficients, with the constant first.
    """
    nodes = np.cos(np.pi * (np.arange(2000) + 0.5) / 2000)
    x = (low + high) / 2 + (high - low) / 2 * nodes
    exact = function(x)
    basis = np.vander(x / high, degree + 1, increasing=True)
    target = exact
    if fixed is not None:
        basis, target = basis[:, 1:], exact - fixed
    weight = np.ones_like(x)
    best_error, best = np.inf, None
    for _ in range(150):
        row = np.sqrt(weight) / np.abs(exact)
        coefficients = np.linalg.lstsq(basis * row[:, None], target * row, rcond=None)[0]
        error = np.abs((basis @ coefficients - target) / exact)
        if error.max() < best_error:
            best_error, best = error.max(), coefficients
        weight *= error + 0.02 * error.max()
        weight /= weight.mean()
    if fixed is not None:
        best = np.r_[fixed, best]
    return best / high ** np.arange(degree + 1), best_error


# ---------------------------------------------------------------------------------------- the guess


def logit(tail, concentration, switch):
    """Return the saturating logit, with base 2, that `quantile.guess` defines."""
    floor = np.exp(-2 * np.minimum(concentration, switch))
    return np.log2((1 + floor) / (2 * tail + floor))


def fit_guess(switch, smallest_tail, low_degrees, high_degrees):
    """Return fits of the starting angle below and above concentration `switch`, by linear programming.

    The error is weighted by max(k sin x, sqrt k), since one step of `quantile.refine` leaves about the sixth power of
    the weighted error as the relative error of the tail probability.
    """
    concentrations = np.concatenate(
        [[0.01], np.geomspace(0.02, switch / 2, 36), np.linspace(switch / 2, 1.6 * switch, 25),
         np.geomspace(1.7 * switch, 400, 14), [1e3, 1e4, 1e6]]
    )  # fmt: skip
    offsets = np.concatenate([[1e-6], np.linspace(0.03, 0.5, 14)])
    tails = np.concatenate([(1 - offsets) / 2, 2.0 ** -np.linspace(2.1, -np.log2(smallest_tail), 75)])
    t, k = np.meshgrid(tails, concentrations)
    x = reference.quantile(t, k)
    weight = np.maximum(np.maximum(k * np.sin(x), np.sqrt(k)), 0.3)
    level = logit(t, k, switch)
    low, high = concentrations <= switch, concentrations >= switch

    def solve(rows, first, second, scale, degrees):
        a, b = first[rows].ravel(), second[rows].ravel()
        spans = a.max(), b.max()
        powers = [(i, j) for i in range(degrees[0] + 1) for j in range(degrees[1] + 1)]
        # Chebyshev products keep the linear program well scaled; they are converted to powers afterwards.
        cheb = np.polynomial.chebyshev
        basis_a = cheb.chebvander(2 * a / spans[0] - 1, degrees[0])
        basis_b = cheb.chebvander(2 * b / spans[1] - 1, degrees[1])
        columns = np.stack([basis_a[:, i] * basis_b[:, j] for i, j in powers], -1)
        w = (scale * weight)[rows].ravel()
        y = (x / scale)[rows].ravel()
        ones = np.ones((len(y), 1))
        matrix = np.block([[columns * w[:, None], -ones], [-columns * w[:, None], -ones]])
        n = len(powers)
        answer = optimize.linprog(
            np.r_[np.zeros(n), 1], A_ub=matrix, b_ub=np.r_[w * y, -w * y],
            bounds=[(None, None)] * n + [(0, None)], method="highs",
        )  # fmt: skip
        error = np.abs(columns @ answer.x[:n] - y) * w
        shape = degrees[0] + 1, degrees[1] + 1

        def to_powers(degree, span):
            rows = [
                cheb.Chebyshev.basis(i, domain=(0, span)).convert(kind=np.polynomial.Polynomial).coef
                for i in range(degree + 1)
            ]
            return np.array([np.pad(row, (0, degree + 1 - len(row))) for row in rows])

        table = to_powers(degrees[0], spans[0]).T @ answer.x[:n].reshape(shape) @ to_powers(degrees[1], spans[1])
        return table, error.max()

    inverse = 1 / (2 + k)
    low_fit = solve(low, level * inverse, inverse, level * inverse, low_degrees)
    high_fit = solve(high, level, 1 / k, level / np.sqrt(k), high_degrees)
    return low_fit, high_fit


# ----------------------------------------------------------------------------------- the quadrature


def cutoff_samples(depth):
    """Return half angles, concentrations, spans and exact values of J (see `tail_integral`), for centre and tail."""
    rng = np.random.default_rng(5)
    concentrations = np.sort(
        np.concatenate([[1e-3], np.exp(rng.uniform(np.log(0.03), np.log(200), 100)),
                        np.exp(rng.uniform(np.log(200), np.log(1e5), 10))])
    )  # fmt: skip
    tails = np.concatenate([np.linspace(0.03, 0.499, 50), 2.0 ** -np.linspace(5, 34, 50)])
    t, k = np.meshgrid(tails, concentrations)
    x = reference.quantile(t, k)
    boundary = 2 * np.sin(x / 2) ** 2 * (1 + k) / CENTRE
    inside = (np.pi - x > 1e-3) & (x > 1e-2 / np.sqrt(1 + k))
    parts = []
    for central in (True, False):
        # Centre and tail each extend 10% beyond the boundary, since rounding may put a point on either side of it.
        rows = inside & (boundary < 1.1 if central else boundary > 0.9)
        xs, ks = x[rows], k[rows]
        mass = -reference.central(xs, ks) if central else reference.sf(xs, ks)
        half = xs / 2
        span = -half if central else cut_angle(half, depth / (2 * ks)) - half
        parts.append((half, ks, span, mass / reference.pdf(xs, ks)))
    return tuple(np.concatenate(pair) for pair in zip(*parts, strict=True))


CENTRE = 0.5  # must equal `tail_integral.CENTRE`
CUT = None  # set by `fit_cut`


def cut_angle(half, depth):
    """Return the half angle, at most pi/2, at which the exponent of `tail_integral` has grown by 2 k `depth`."""
    square = np.minimum(np.sin(half) ** 2 + depth, 1)
    return np.sqrt(square) * np.polynomial.polynomial.polyval(1 - square, CUT)


def fit_cut(degree):
    """Fit arcsin(sqrt(S)) / sqrt(S) by a polynomial in 1 - S that is exact at S = 1.

    Elsewhere an error of a few per cent is harmless, since the polynomial only decides where the integral is cut, and
    the rule is fitted to that cut.
    """
    s = (1 - np.cos(np.pi * (np.arange(400) + 0.5) / 400)) / 2
    exact = np.arcsin(np.sqrt(s)) / np.sqrt(s)
    basis = np.stack([(1 - s) ** j for j in range(1, degree + 1)], -1)
    c = np.linalg.lstsq(basis, exact - HALF_PI, rcond=None)[0]
    return np.r_[HALF_PI, c], np.abs(basis @ c + HALF_PI - exact).max()


RULE_SHAPE = (0.422, -0.166, 1.791, -3.427, 2.316)


def fit_rule(nodes, depth):
    """Return nodes, weights and error of a generalised Gauss rule on [0, 1] for the family of `cutoff_samples`.

    The fit uses least squares with Lawson's weights, for the smallest maximum error. It starts from Gauss-Legendre
    nodes mapped by u RULE_SHAPE(u). From an arbitrary start, it ends in a local minimum that is a thousand times worse.
    """
    half, k, span, exact = cutoff_samples(depth)
    half, k, span, exact = half[:, None], k[:, None], span[:, None], exact[:, None]

    def terms(v):
        angle = half + span * v
        rise = np.sin(span * v) * np.sin(half + angle)
        return angle, 2 * span * np.exp(-2 * k * rise) / exact

    def residual(p, row):
        v, w = np.split(p, 2)
        return row * (terms(v)[1] @ w - 1)

    def jacobian(p, row):
        v, w = np.split(p, 2)
        angle, e = terms(v)
        return row[:, None] * np.concatenate([e * w * (-2 * k * np.sin(2 * angle) * span), e], 1)

    def gauss(n):
        x, w = np.polynomial.legendre.leggauss(n)
        return (x + 1) / 2, w / 2

    u, w = gauss(nodes)
    shape = np.polynomial.Polynomial(RULE_SHAPE)
    v, w = u * shape(u), w * (shape(u) + u * shape.deriv()(u))
    p, row = np.r_[v, w], np.ones(len(half))
    best = (np.inf, None)
    for _ in range(100):
        p = optimize.least_squares(
            residual,
            p,
            jacobian,
            args=(row,),
            method="lm",
            x_scale="jac",
            xtol=1e-14,
            ftol=1e-14,
            gtol=1e-14,
            max_nfev=60,
        ).x
        size = np.abs(residual(p, 1.0))
        if size.max() < best[0]:
            best = size.max(), p
        row *= np.sqrt(size + 0.05 * size.max())
        row /= np.sqrt((row**2).mean())
    v, w = np.split(best[1], 2)
    order = np.argsort(v)
    return v[order], w[order], best[0]


RULE64_DEPTH = 36.0  # e^-36 is 2e-16
# Nodes from which the fit of the float64 rule converges: Gauss-Legendre nodes u, moved to u RULE64_SHAPE(u).
RULE64_SHAPE = (0.303, -0.0392, 1.61, -3.31, 2.33)


def span64(half, k, depth, deep):
    """Return the span of half angles that `tail_integral.tail_span` computes in float64, from `half` to the cut."""
    growth, sine, cosine = depth / (2 * k), np.sin(2 * half), np.cos(2 * half)
    square = np.minimum(np.sin(half) ** 2 + growth, 1)
    span = np.where(square > 0.5, HALF_PI - np.arcsin(np.sqrt(1 - square)), np.arcsin(np.sqrt(square))) - half
    short = deep & (growth < 0.1 * sine**2)
    span = np.where(short, growth / (sine + growth / sine * cosine), span)
    return np.where(growth < np.cos(half) ** 2, span, HALF_PI - half)


def samples64(depth):
    """Return half angles, concentrations and spans, for centre and tail, as columns.

    Integrands change most between concentrations at which tails are cut and those at which they are not, so samples are
    dense there.
    """
    rng, parts = np.random.default_rng(5), []
    concentrations = np.concatenate([[1e-3], np.exp(rng.uniform(np.log(0.03), np.log(200), 70)),
                                     np.exp(rng.uniform(np.log(200), np.log(1e6), 14)),
                                     np.linspace(12, 40, 40), np.geomspace(0.05, 400, 60)])  # fmt: skip
    for k in concentrations:
        # Centre and tail each extend 10% beyond the boundary, as in `cutoff_samples`.
        half = np.arcsin(np.sqrt(np.linspace(1e-3, 1.1, 12) * CENTRE / (2 * (1 + k))))
        parts.append((half, k, -half))
        first, last = 0.9 * CENTRE * k / (1 + k), min(2 * k, 760.0)  # of 2 k sin^2(x/2)
        near_cut = np.clip(2 * k * (1 - np.linspace(-0.02, 0.06, 9)) - depth, first, last)
        place = np.concatenate([np.linspace(0, 1, 22) ** 2, 1 - np.array([0.3, 0.1, 0.03, 0.01, 0.003, 0.001])])
        q = np.concatenate([first + (last - first) * place, near_cut])
        half = np.arcsin(np.sqrt(np.minimum(q / (2 * k), 1)))
        half = half[HALF_PI - half > 5e-4]
        drawn = half[2 * k * np.sin(half) ** 2 < 46]
        parts += [(half, k, span64(half, k, depth, True)), (drawn, k, span64(drawn, k, depth, False))]
    columns = [np.broadcast_arrays(*part) for part in parts]
    return [np.concatenate(each)[:, None] for each in zip(*columns, strict=True)]


def fit_rule64(nodes, depth):
    """Return nodes, weights and error of a generalised Gauss rule on [0, 1] for the family of `samples64`.

    Integrands of the family are sums of a few dozen functions, the first right singular vectors of the matrix of their
    values. A Gauss rule integrates twice as many of them as it has nodes. Damped Gauss-Newton steps find it.
    """
    half, k, span = samples64(depth)
    u, w = reference.gauss_legendre(64)
    edges = np.concatenate([[0], np.geomspace(1e-3, 1, 9)])
    fine = np.concatenate([a + (b - a) * (u + 1) / 2 for a, b in itertools.pairwise(edges)])
    fine_weights = np.concatenate([(b - a) * w / 2 for a, b in itertools.pairwise(edges)])

    def integrand(v, span):
        return 2 * span * np.exp(-2 * k * np.sin(span * v) * np.sin(2 * half + span * v))

    longer = np.where(span < 0, span, span64(half, k, 2 * depth, True))
    exact = integrand(fine, longer) @ fine_weights[:, None]
    family = integrand(fine, span) / exact
    left, size, _ = np.linalg.svd(family * np.sqrt(fine_weights), full_matrices=False)
    to_functions = (left[:, : 2 * nodes] / np.maximum(size[: 2 * nodes] / size[0], 1e-12)).T

    def residual(v, w):
        return to_functions @ ((integrand(v, span) / exact) @ w - 1)

    u, w = reference.gauss_legendre(nodes)
    u, w, shape = (u + 1) / 2, w / 2, np.polynomial.Polynomial(RULE64_SHAPE)
    v, w = u * shape(u), w * (shape(u) + u * shape.deriv()(u))
    now, damping = residual(v, w), 1e-3
    for _ in range(240):
        terms = integrand(v, span) / exact
        jacobian = to_functions @ np.hstack([terms * w * (-2 * k * np.sin(2 * (half + span * v)) * span), terms])
        scale = np.linalg.norm(jacobian, axis=0)
        while damping < 1e3:
            rows = np.vstack([jacobian / scale, damping * np.eye(2 * nodes)])
            step = np.linalg.lstsq(rows, np.concatenate([-now, np.zeros(2 * nodes)]), rcond=None)[0] / scale
            next_v, next_w = v + step[:nodes], w + step[nodes:]
            inside = next_v.min() > 0 and next_v.max() < 1
            if inside and np.linalg.norm(following := residual(next_v, next_w)) < np.linalg.norm(now):
                v, w, now, damping = next_v, next_w, following, damping / 10
                break
            damping = max(10 * damping, 1e-16)
        else:
            break
    return v, w, np.abs((integrand(v, span) / exact) @ w - 1).max()


def chebyshev_fit(function, radius, degree):
    """Return the polynomial of `degree` through the values of an mpmath function at Chebyshev points, and its error."""
    with mp.workdps(40):
        terms, error = mp.chebyfit(function, [-radius, radius], degree + 1, error=True)
        least = min(abs(function(radius * j / 8)) for j in range(-8, 9))
    return tuple(float(c) for c in reversed(terms)), float(error / least)


def wide_fits():
    """Yield (comment, name, value) for the float64 polynomials."""
    switch = mp.mpf(8)

    def norm_large(y):
        k = 1 / max(y + 0.5 / switch, mp.mpf(10) ** -12)
        return reference.mp_norm(k) * mp.sqrt(k)

    def difference(y):
        k = y + switch / 2
        return mp.exp(-k / 2) * (mp.besseli(0, k) - mp.besseli(1, k))

    def complement_large(y):
        k = 1 / max(y + 0.5 / switch, mp.mpf(10) ** -12)
        return k * (1 - reference.mp_ratio(k))

    for text, name, function, radius, degree in (
        ("2 pi sqrt(k) e^-k I0(k) in 1 / k - 1/16, k >= 8", "NORM_LARGE64", norm_large, 0.5 / switch, 20),
        ("e^(-k/2) (I0(k) - I1(k)) in k - 4, k < 8", "I_DIFFERENCE64", difference, switch / 2, 24),
        ("k (1 - A(k)) in 1 / k - 1/16, k >= 8", "COMPLEMENT_LARGE64", complement_large, 0.5 / switch, 24),
        ("2^f, f in [-1/2, 1/2]", "EXP2_64", lambda f: mp.mpf(2) ** f, mp.mpf("0.5"), 11),
    ):
        value, error = chebyshev_fit(function, radius, degree)
        yield f"{text}: relative error {error:.0e}.", name, value


# ---------------------------------------------------------------------------------- the complete file


def exact_ratio_small(z):
    """Return 2 I1(k) / k for z = k^2 / 4."""
    k = 2 * np.sqrt(z)
    return 2 * special.i1(k) / k


def exact_difference(u):
    """Return I0(k) - I1(k) for u = k - 5/2."""
    return special.i0(u + 2.5) - special.i1(u + 2.5)


def exact_complement_large(r):
    """Return k (1 - A(k)) for r = 1 / k."""
    return reference.ratio_complement(1 / r) / r


def sinc(z):
    """Return sin(d) / d for z = d^2."""
    return np.sin(np.sqrt(z)) / np.sqrt(z)


def sine_square_rest(z):
    """Return (sin(d)^2 - d^2) / d^4 for z = d^2."""
    return (np.sin(np.sqrt(z)) ** 2 - z) / z**2


def literal(value):
    """Return the Python source of a number or of nested tuples of numbers, on one line."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    return "(" + ", ".join(literal(v) for v in value) + ",)"


def rounded(values, digits):
    """Return nested tuples of floats rounded to `digits` significant digits."""
    if np.ndim(values) == 0:
        return float(f"{float(values):.{digits}g}")
    return tuple(rounded(v, digits) for v in values)


def fitted():
    """Yield (comment, name, value) for each constant of the file."""
    global CUT
    single = [
        ("sin(d) / d in d^2, d in [0, pi/2]", "SINE", minimax(sinc, 1e-9, HALF_PI**2, 4)),
        (
            "cos(d) in d^2, d in [0, pi/2], relative to cos(0)",
            "COSINE",
            minimax_absolute(lambda z: np.cos(np.sqrt(z)), 0.0, HALF_PI**2, 5),
        ),
        ("sin(d) cos(d) / d in d^2, d in [0, 1.36]", "SIN_COS", minimax(lambda z: sinc(4 * z), 1e-9, 1.36**2, 5)),
        ("sin(d)^2 / d^2 in d^2, d in [0, 1.36]", "SIN_SIN", minimax(lambda z: sinc(z) ** 2, 1e-9, 1.36**2, 5)),
        (
            "(sin(d)^2 - d^2) / d^4 in d^2, d in [0, pi/4]",
            "SINE_SQUARE",
            minimax(sine_square_rest, 1e-3, HALF_PI**2 / 4, 3),
        ),
        (
            "(sin(d)^2 - d^2) / d^4 in d^2, d in [0, pi/2]",
            "SINE_SQUARE_WIDE",
            minimax(sine_square_rest, 1e-3, HALF_PI**2, 5),
        ),
        ("e^f, f in [-0.35, 0.35]", "EXP", minimax_shifted(np.exp, 0.35, 6)),
        ("2^f, f in [-1/2, 1/2]", "EXP2", minimax_shifted(np.exp2, 0.5, 5)),
        ("log2(1 + m) / m, m in [-1/3, 1/3]", "LOG2", minimax_shifted(lambda m: np.log1p(m) / m / np.log(2), 1 / 3, 7)),
        (
            "I0(k) in k^2 / 4, k < 5",
            "I0_SMALL",
            minimax(lambda z: special.i0(2 * np.sqrt(z)), 0.0, 6.25, 8, fixed=1.0),
        ),
        (
            "2 pi sqrt(k) e^-k I0(k) in 1 / k, k >= 5",
            "NORM_LARGE",
            minimax(lambda r: 2 * np.pi * special.i0e(1 / r) / np.sqrt(r), 1e-9, 0.2, 7),
        ),
        ("2 I1(k) / k in k^2 / 4, k < 5", "RATIO_SMALL", minimax(exact_ratio_small, 1e-9, 6.25, 7)),
        ("I0(k) - I1(k) in k - 5/2, k < 5", "I_DIFFERENCE", minimax_shifted(exact_difference, 2.5, 10)),
        ("k (1 - A(k)) in 1 / k, k >= 5", "COMPLEMENT_LARGE", minimax(exact_complement_large, 1e-9, 0.2, 10)),
    ]
    for text, name, (value, error) in single:
        yield f"{text}: relative error {error:.1e}.", name, rounded(value, 10)
    CUT, error = fit_cut(4)
    CUT = np.array([HALF_PI, *rounded(CUT[1:], 10)])  # a rounded pi/2 would move the end at pi
    yield f"arcsin(sqrt(S)) / sqrt(S) in 1 - S: within {error:.2f}, exact at S = 1.", "CUT", tuple(CUT.tolist())
    v, w, error = fit_rule(7, RULE_DEPTH)
    yield "The exponent at which the float32 rule cuts the tail integral.", "RULE_DEPTH", RULE_DEPTH
    yield f"Nodes and weights on [0, 1] of the float32 rule: relative error {error:.1e}.", "RULE_NODES", rounded(v, 10)
    yield None, "RULE_WEIGHTS", rounded(w / w.sum(), 10)  # the sum is 1 up to the error of the rule
    v, w, error = fit_rule64(15, RULE64_DEPTH)
    yield "The exponent at which the float64 rule cuts the tail integral.", "RULE64_DEPTH", RULE64_DEPTH
    yield (
        f"Nodes and weights on [0, 1] of the float64 rule: relative error {error:.0e}.",
        "RULE64_NODES",
        rounded(v, 17),
    )
    yield None, "RULE64_WEIGHTS", rounded(w, 17)
    v, w = reference.gauss_legendre(32)
    u, w = (v + 1) / 2, w / 2
    text = "The rule for moments in both precisions: 32 Gauss-Legendre nodes u, moved to 0.7 u + 0.3 u^2."
    yield text, "MOMENT_DEPTH", 42.0
    yield None, "MOMENT_NODES", rounded(0.7 * u + 0.3 * u * u, 17)
    yield None, "MOMENT_WEIGHTS", rounded(w * (0.7 + 0.6 * u), 17)
    yield from wide_fits()
    for suffix, switch, tail, low, high in (
        ("", 17.0, 2.0**-33, (6, 3), (5, 2)),
        ("64", 32.0, 2.0**-65, (8, 4), (6, 3)),
    ):
        (low_fit, low_error), (high_fit, high_error) = fit_guess(switch, tail, low, high)
        yield (
            f"Concentration at which the formula of the guess for tails down to 2^{np.log2(tail):.0f} changes.",
            f"GUESS{suffix}_SWITCH",
            switch,
        )
        yield f"Guess below it: weighted error {low_error:.3f}.", f"GUESS{suffix}_LOW", rounded(low_fit, 9)
        yield f"Guess above it: weighted error {high_error:.3f}.", f"GUESS{suffix}_HIGH", rounded(high_fit, 9)


RULE_DEPTH = 18.0  # e^-18 is a quarter of 2^-24, half an ulp of 1; a larger depth wastes nodes where there is no mass


def minimax_absolute(function, low, high, degree):
    """Return `minimax` with respect to roughly the absolute error, for functions that pass through 0."""
    value, error = minimax(lambda x: function(x) + 4.0, low, high, degree)
    return value - np.r_[4.0, np.zeros(degree)], 4 * error


def minimax_shifted(function, radius, degree):
    """Return `minimax` on [-radius, radius] without the point 0, where log1p(m) / m, for example, needs a limit."""
    nodes = np.cos(np.pi * (np.arange(2000) + 0.5) / 2000) * radius
    exact = function(nodes)
    weight, best = np.ones_like(nodes), (np.inf, None)
    basis = np.vander(nodes / radius, degree + 1, increasing=True)
    for _ in range(150):
        row = np.sqrt(weight) / np.abs(exact)
        c = np.linalg.lstsq(basis * row[:, None], exact * row, rcond=None)[0]
        error = np.abs(basis @ c / exact - 1)
        if error.max() < best[0]:
            best = error.max(), c / radius ** np.arange(degree + 1)
        weight *= error + 0.02 * error.max()
        weight /= weight.mean()
    return best[1], best[0]


def render():
    """Return the text of the complete file."""
    lines = [
        '"""Fitted constants, written by `tools/make_tables.py`; do not edit.',
        "",
        "Polynomials list the constant coefficient first. Tables in two variables have one row per power of the first.",
        '"""',
        "",
    ]
    for comment, name, value in fitted():
        if comment:
            lines += ["", *textwrap.wrap(comment, 100, initial_indent="# ", subsequent_indent="# ")]
        lines.append(f"{name} = {literal(value)}")
    return "\n".join(lines) + "\n"


def outline(text):
    """Return the text with a mark in place of every coefficient, which leaves names, shapes and errors.

    The check compares these. Linear programs have distant solutions that are nearly as good, so another processor or
    release of SciPy may find other coefficients with the same error.
    """
    lines = [line if line.startswith("#") else NUMBER.sub("n", line) for line in text.splitlines()]
    return "\n".join(lines)


def main():
    """Write the file, or report whether the committed one is current."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; report whether the file is current")
    check = parser.parse_args().check
    text = render()
    if check:
        current = outline(TARGET.read_text()) == outline(text)
        print(f"{TARGET.name} is {'current' if current else 'NOT what this script writes'}")
        raise SystemExit(not current)
    TARGET.write_text(text)
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
