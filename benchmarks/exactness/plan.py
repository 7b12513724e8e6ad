"""Define the distributions to test, and the number of angles for each."""

from typing import NamedTuple

__all__ = ["BINS", "BLOCK", "DISTRIBUTIONS", "FULL", "QUICK", "WORDS", "Distribution", "shares"]

BLOCK = 2**22  # angles per call of the sampler
BINS = 2**16
QUICK = 2**26
FULL = {"cpu": 10**10, "gpu": 10**12}
# How many of the `every_word.CHUNKS` chunks of tail probabilities to check.
WORDS = {"some": 4, "every": 512}


class Distribution(NamedTuple):
    """A concentration with a dtype and a method, and its share of the angles as a weight."""

    concentration: float
    dtype: str = "float32"
    method: str = "table"
    weight: int = 1

    @property
    def name(self):
        """Name of the distribution in tables and files."""
        return f"k={self.concentration:g}, {self.dtype}, {self.method}"


DISTRIBUTIONS = (
    *(Distribution(k, weight=4) for k in (0.0, 0.5, 5.0, 100.0, 1e4, 1e7)),
    *(Distribution(k, method="direct") for k in (0.5, 5.0, 1e4)),
    Distribution(5.0, "bfloat16"),
    Distribution(5.0, "float16"),
    Distribution(100.0, "float16", "direct"),
    Distribution(5.0, "float64"),
    Distribution(1e7, "float64", "direct"),
)


def shares(angles, distributions):
    """Return the number of blocks of each distribution, at least one; together they have at least `angles` angles."""
    weights = sum(each.weight for each in distributions)
    return {each: max(1, -(-angles * each.weight // (weights * BLOCK))) for each in distributions}
