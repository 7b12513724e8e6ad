"""Which laws are drawn, and how many angles of each."""

from typing import NamedTuple

__all__ = ["BLOCK", "FULL", "LAWS", "QUICK", "WORDS", "Law", "shares"]

# Angles in a block; one call of the sampler, and of the device.
BLOCK = 2**22
BINS = 2**16
QUICK = 2**26
FULL = {"cpu": 10**10, "gpu": 10**12}
# Chunks of all tail probabilities of a law, of `every_word.CHUNKS`.
WORDS = {"some": 4, "every": 512}


class Law(NamedTuple):
    """One law in one dtype by one route, and its part of all angles."""

    concentration: float
    dtype: str = "float32"
    method: str = "table"
    weight: int = 1

    @property
    def name(self):
        """For tables and files."""
        return f"k={self.concentration:g}, {self.dtype}, {self.method}"


LAWS = (
    *(Law(k, weight=4) for k in (0.0, 0.5, 5.0, 100.0, 1e4, 1e7)),
    *(Law(k, method="direct") for k in (0.5, 5.0, 1e4)),
    Law(5.0, "bfloat16"),
    Law(5.0, "float16"),
    Law(100.0, "float16", "direct"),
    Law(5.0, "float64"),
    Law(1e7, "float64", "direct"),
)


def shares(angles, laws=LAWS, block=BLOCK):
    """Blocks for each law: at least one, and `angles` in all, or somewhat more."""
    weights = sum(law.weight for law in laws)
    return {law: max(1, -(-angles * law.weight // (weights * block))) for law in laws}
