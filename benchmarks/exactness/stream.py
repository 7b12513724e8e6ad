"""Whether angle i is the quantile of word i of the key, by a cipher and a quantile that the package has no part in."""

import numpy as np

from benchmarks import reference
from benchmarks.exactness import law
from benchmarks.exactness.verdicts import Verdict

__all__ = ["PLACES", "check", "threefry", "word"]

# Where a stream begins, where a block of the sampler ends, and around the places where 32 bits of a counter run over.
PLACES = (0, 2**14 - 50, 2**22 - 50, 2**32 - 50, 2**33 - 50, 2**40 + 12345)
LENGTH = 100
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key, counter):
    """Threefry-2x32 with 20 rounds, on integers: Salmon et al., SC11, 2011, doi:10.1145/2063384.2063405."""
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
    """Word `i` of the stream of a key, a pair of integers."""
    block = i // 2
    return threefry(key, (block >> 32, block & (2**32 - 1)))[i % 2]


def check(draw, key_data, k):
    """Compare angles that ``draw(start, count)`` gives, about 0, with the quantiles of the words they belong to."""
    worst, where = 0.0, 0
    for start in PLACES:
        found = np.asarray(draw(start, LENGTH), np.float64)
        words = np.array([word(key_data, start + j) for j in range(LENGTH)], np.uint64)
        tail = ((words >> np.uint64(1)).astype(np.float64) + 0.5) / law.LATTICE
        sign = np.where(words & np.uint64(1), -1.0, 1.0)
        # By how much of the promise the tail probability of the angle is off; of the other sign it is off by far.
        size = sign * found
        beyond = reference.cdf(-size, k)
        share = np.abs(beyond - tail) / law.slack_at(found, tail, k, "float32")
        if not np.max(share) <= worst:
            worst, where = float(np.max(share)), start + int(np.argmax(share))
    told = f"{len(PLACES) * LENGTH} angles, at most {worst:.2g} of the promised error off, at angle {where:,}"
    return Verdict("angle i is the quantile of word i", told, 1.0 if worst <= 1 else 0.0)
