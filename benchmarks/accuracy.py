"""How many different angles a sampler can give at large concentration.

A float32 sampler that takes ``arccos`` of a cosine near 1 can return only the angles of the few cosines that float32
has there. A million draws show it: in exact arithmetic nearly all of them differ.
"""

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import PEERS, Unavailable

__all__ = ["CONCENTRATIONS", "DRAWS", "measure", "summarise"]

DRAWS = 1_000_000
CONCENTRATIONS = (1e3, 1e5, 1e7, 1e9)


def summarise(angles):
    """Count what came out of a sampler about 0.

    Parameters
    ----------
    angles : float array
        Rounded to float32 first, whatever the sampler works in: what is left of the law in the caller's dtype.

    Returns
    -------
    dict
        ``distinct``, the number of different finite ``|x|``; ``zero`` and ``nan``, the shares of draws that are
        exactly 0 and not a number.
    """
    sizes = np.abs(np.asarray(angles, np.float32).ravel())
    finite = sizes[np.isfinite(sizes)]
    return {
        "distinct": int(np.unique(finite).size),
        "zero": float(np.mean(sizes == 0)),
        "nan": float(np.mean(np.isnan(sizes))),
    }


def measure(peers=PEERS, draws=DRAWS, concentrations=CONCENTRATIONS):
    """Rows of ``peer``, ``concentration`` and what `summarise` counts, for every peer that runs here."""
    rows = []
    for concentration in concentrations:
        case = Case(f"accuracy k={concentration:g}", "accuracy", draws, concentration)
        for peer in peers:
            try:
                sampler = peer.prepare(case)
            except Unavailable:
                continue
            competitor = sampler.competitor
            result = competitor.draw(competitor.fresh(0))
            competitor.wait(result)
            counts = summarise(sampler.angles(result))
            rows.append({"peer": peer.name, "concentration": concentration, "draws": draws, **counts})
    return rows
