"""The committed constants equal the output of their generator."""

import pytest

from jax_von_mises.numerics import coefficients
from tools import make_tables


@pytest.mark.slow
def test_tables_are_current():
    assert make_tables.outline(make_tables.TARGET.read_text()) == make_tables.outline(make_tables.render())


def test_a_table_is_current():
    """The coefficients and the stated error of a table that is fast to fit agree with the generator's."""
    fitted, error = make_tables.minimax(make_tables.sinc, 1e-9, make_tables.HALF_PI**2, 4)
    assert pytest.approx(fitted, rel=1e-4) == coefficients.SINE
    assert f"[0, pi/2]: relative error {error:.1e}.\nSINE = " in make_tables.TARGET.read_text()
