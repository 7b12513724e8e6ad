"""Define the sizes of the checks and timings."""

from typing import NamedTuple

__all__ = ["FULL", "QUICK", "TINY", "Plan"]


class Plan(NamedTuple):
    """Numbers of angles, shapes and rounds."""

    words: int
    """Words compared for each cipher."""
    angles: int
    """Angles compared with the reference for each concentration."""
    arrays: int
    """Angles compared with the CPU's, each with its own concentration or direction."""
    sizes: tuple[int, ...]
    """Sizes of draws; each draw must equal the beginning of the longest one."""
    few_sizes: tuple[int, ...]
    """Sizes for the programs that take seconds to compile."""
    rows: int
    """Rows of a `vmap` over short draws."""
    huge: int
    """Angles of one draw, above 2^32, whose slices are compared; 0 to skip the check."""
    distributions: int
    """Angles of each distribution that `benchmarks.exactness` tests."""
    distributions_plain: int
    """Angles of each distribution that are tested on the plain path, too, if there are kernels."""
    outside: int
    """Time limit in seconds of the tool that checks memory accesses."""
    draws: int
    """Angles of a timed draw with one concentration."""
    timed_arrays: int
    """Angles of a timed draw with an array of concentrations."""
    peers: int
    """Angles of a timed draw by another library."""
    rounds: int


# Every remainder modulo 4 around powers of two, up to the end of the fourth block of threads.
SIZES = tuple(sorted({*range(1, 18), *(2**j + d for j in range(5, 13) for d in range(-3, 4))}))
FEW_SIZES = (*range(1, 10), 1022, 1023, 1024, 1025, 4093, 4096, 4099)
FULL = Plan(
    words=2**22,
    angles=2**16,
    arrays=2**22,
    sizes=SIZES,
    few_sizes=FEW_SIZES,
    rows=3000,
    huge=2**32 + 4099,
    distributions=10**11,
    distributions_plain=10**9,
    outside=240,
    draws=2**28,
    timed_arrays=2**26,
    peers=2**24,
    rounds=20,
)
QUICK = FULL._replace(
    few_sizes=(1, 2, 3, 4, 5, 1023, 4096, 4099), distributions=10**9, distributions_plain=10**7, rounds=7
)
# For tests, on any device.
TINY = Plan(
    words=2**10,
    angles=2**8,
    arrays=2**8 + 3,
    sizes=(1, 5, 67, 68),
    few_sizes=(3, 68),
    rows=5,
    huge=0,
    distributions=2**22,
    distributions_plain=2**20,
    outside=60,
    draws=2**12,
    timed_arrays=2**10,
    peers=2**10,
    rounds=2,
)
