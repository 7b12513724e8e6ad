"""Check that angle i is computed from word i of the key, with an independent cipher and distribution function."""

import numpy as np

from benchmarks import reference
from benchmarks.exactness import expected
from benchmarks.exactness.verdicts import Verdict

__all__ = ["check", "threefry", "word"]

# The beginning, the ends of blocks, a distant place, and places where the low 32 bits of an angle's index (2^32) or of
# the counter (2^33) overflow.
PLACES = (0, 2**14 - 50, 2**22 - 50, 2**32 - 50, 2**33 - 50, 2**40 + 12345)
LENGTH = 100
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key, counter):
    """Compute Threefry-2x32 with 20 rounds on integers (Salmon et al., SC11, 2011, doi:10.1145/2063384.2063405)."""
    mask = 2**32 - 1
    schedule = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    left, right = ((c + k) & mask for c, k in zip(counter, key, strict=True))
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            left = (left + right) & mask
            right = ((right << rotation | right >> (32 - rotation)) & mask) ^ left
        left = (left + schedule[(group + 1) % 3]) & mask
        right = (right + schedule[(group + 2) % 3] + group + 1) & mask
    return left, right


def word(key, i):
    """Return word `i` of the stream of `key`, which is a pair of integers."""
    block = i // 2
    return threefry(key, (block >> 32, block & (2**32 - 1)))[i % 2]


def check(draw, key_data, k):
    """Compare the tail probabilities of angles about 0, drawn by ``draw(start, count)``, with those of their words."""
    worst, where = 0.0, 0
    for start in PLACES:
        x = np.asarray(draw(start, LENGTH), np.float64)
        words = np.array([word(key_data, start + j) for j in range(LENGTH)], np.uint64)
        tail = ((words >> np.uint64(1)).astype(np.float64) + 0.5) / expected.LATTICE
        size = np.where(words & np.uint64(1), -1.0, 1.0) * x  # negative if the sign is wrong, which gives a large error
        share = np.abs(reference.cdf(-size, k) - tail) / expected.slack_at(x, tail, k, "float32")
        if not np.max(share) <= worst:
            worst, where = float(np.max(share)), start + int(np.argmax(share))
    found = f"{len(PLACES) * LENGTH} angles, at most {worst:.2g} of the guaranteed error, at angle {where:,}"
    return Verdict("angle i is the quantile of word i", found, 1.0 if worst <= 1 else 0.0)
