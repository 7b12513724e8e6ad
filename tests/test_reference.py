"""The float64 reference against mpmath: the tests' own foundation."""

import mpmath as mp
import numpy as np
import pytest

from tests import reference

CONCENTRATIONS = (1e-6, 0.3, 2.0, 6.5, 40.0, 1e4, 1e9)
TAILS = (0.499, 0.3, 1e-2, 2.0**-20, 2.0**-33, 2.0**-60)


@pytest.mark.parametrize("k", CONCENTRATIONS)
def test_tail_and_centre(k):
    x = reference.quantile(np.array(TAILS), k)
    sf, central = reference.sf(x, k), reference.central(x, k)
    for j in range(len(TAILS)):
        exact = reference.mp_tail(x[j], k)
        assert abs(sf[j] / exact - 1) < 3e-13
        if TAILS[j] > 0.2:
            assert abs(central[j] / (mp.mpf(1) / 2 - exact) - 1) < 3e-12
        # The rounding of x itself moves its tail by so much.
        slack = float(np.spacing(x[j]) * reference.pdf(x[j], k) / TAILS[j])
        assert abs(float(exact) / TAILS[j] - 1) < 3e-13 + 4 * slack


@pytest.mark.parametrize("k", [0.3, 2.0, 40.0, 1e6])
@pytest.mark.parametrize("t", [0.45, 0.1, 1e-6])
def test_derivative(k, t):
    """Against central differences of the quantile."""
    x = reference.quantile(t, k)
    step = 1e-4 * k
    difference = (reference.quantile(t, k + step) - reference.quantile(t, k - step)) / (2 * step)
    assert reference.dquantile_dk(x, k) == pytest.approx(float(difference), rel=1e-6)


def test_quantile_next_to_zero():
    """c = 1/2 - t is what decides there; the angle is c / density(0)."""
    c = np.array([1e-9, 1e-15])
    for k in (0.0, 3.0, 1e8):
        np.testing.assert_allclose(reference.quantile(0.5 - c, k, c), c * reference.norm(k), rtol=1e-10)
