"""How much is checked and timed."""

from typing import NamedTuple

__all__ = ["FULL", "QUICK", "TINY", "Plan"]


class Plan(NamedTuple):
    """Sizes of everything."""

    words: int
    """Words of each cipher that are compared."""
    angles: int
    """Angles of each law that are compared with the reference."""
    sizes: tuple[int, ...]
    """Shapes whose angles must be the beginning of the longest one's."""
    huge: int
    """Angles of one draw, above 2^32, of which slices are compared; 0 for none."""
    law: int
    """Angles of each law in the search for errors."""
    draws: int
    """Angles of a timed draw with one concentration."""
    arrays: int
    """And of one with a concentration for each."""
    peers: int
    """And of those that take longer."""
    rounds: int


SIZES = (*range(1, 259), *range(259, 4093, 37), *range(4093, 4100))
FULL = Plan(2**22, 2**16, SIZES, 2**32 + 4099, 10**11, 2**28, 2**26, 2**24, 20)
QUICK = FULL._replace(sizes=SIZES[::7], law=10**9, rounds=7)
# For tests, on whatever there is.
TINY = Plan(2**10, 2**8, (1, 5, 67), 0, 2**22, 2**12, 2**10, 2**10, 2)
