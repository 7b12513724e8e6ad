"""Check the accuracy of angles at chosen tail probabilities, without random draws."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import reference
from benchmarks.exactness.expected import ALLOWED, ULP
from jax_von_mises.sampling import transform

__all__ = ["accuracy", "errors"]

CONCENTRATIONS = (0.5, 5.0, 1e4, 1e7)


def errors(k, route, points):
    """Return the errors of float32 angles at tail probabilities from 1/2 down to 2^-33.

    Returns
    -------
    dict
        ``tail``, the probabilities; ``share``, the error of each angle divided by the guaranteed error, in its tail
        probability or in units in the last place, whichever is smaller; ``worst``, the largest of these.
    """
    numbers = np.unique(np.geomspace(1, 2.0**31 - 1, points).astype(np.uint64)) - 1
    t = (numbers.astype(np.float64) + 0.5) * 2.0**-32
    words = jnp.asarray((numbers << 1).astype(np.uint32))
    angles = jax.jit(lambda words, k: transform.angles((words,), jnp.float32(0), k, route))(words, np.float32(k))
    angles, k = np.asarray(angles, np.float64), float(np.float32(k))
    error = np.abs(reference.cdf(-angles, k) / t - 1)
    place = np.spacing(np.abs(angles).astype(np.float32)).astype(np.float64)
    ulp = error * t / np.exp(reference.log_prob(angles, k)) / place
    shares = np.minimum(error / ALLOWED["float32"], ulp / ULP)
    row = {"line": f"{route} route, concentration {k:g}", "route": route, "concentration": k}
    return row | {"tail": t.tolist(), "share": shares.tolist(), "worst": float(np.max(shares))}


def accuracy(plan, tick):
    """Check both routes at small and large concentrations."""
    rows = []
    for k in CONCENTRATIONS:
        for route in ("table", "direct"):
            tick()
            rows.append(errors(k, route, plan.tail_points))
    return {"rows": rows}
