"""Compare the shipped kernels, executed on the CPU, with the plain path.

The comparison covers sizes, starts, arrays, rows and grids, and draws of more than 2^32 angles. The errors of the
hardware's approximations are random, or as large as allowed in either direction. `DAMAGES` are deliberate faults in the
text of a kernel; each must be found.
"""

import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises.numerics import piecewise
from jax_von_mises.numerics.density import valid
from jax_von_mises.sampling import counter, cuda_launch, cuda_trial
from jax_von_mises.sampling.cuda_self_test import KEY_SIZES, allowed, halves, rounded_from
from tools.ptx.machine import Fault, Machine, Part

__all__ = ["DAMAGES", "KERNELS", "Found", "examine", "finding"]

KERNELS = tuple(dict.fromkeys(spec.name for spec in cuda_trial.specs()))
QUICK_SIZES = (1, 2, 3, 4, 5, 7, 8, 255, 1023, 1025, 4099)
SIZES = (*range(1, 41), 63, 64, 65, *QUICK_SIZES[7:], 4096, 20_001, 65_537)
STARTS = (0, 1, 2, 3, 2**32 - 6, 2**34 - 3, 2**63 + 5, 2**64 - 5)  # draws from the last one continue at 0
ROWS = ((1, 5), (3, 1), (7, 10), (300, 3), (5, 1030))
BLOCKS = ((256, 1), (1, 1), (32, 1), (96, 1), (64, 4), (3, 7), (1, 256))
# Positions of words with tail 1/2 and with the smallest tail, for two ciphers and the key with the words 1, 2, ...
ENDS = {"threefry2x32": (2_093_925, 941_978_674), "threefry4x32": (3_949_382, 2_415_051_297)}
# Mean directions at and beyond the largest that is reduced to one turn, values that are not finite, and small ones.
LOCS = np.float32([2**24, -(2**24), np.nextafter(np.float32(2**24), np.inf), 1e30, np.inf, np.nan, 0.0, -0.0, np.pi])
# Least and largest error of the hardware's approximations, as fractions of the allowed error.
ERRORS = ((-1.0, 1.0), (1.0, 1.0), (-1.0, -1.0))
KAPPAS = (0.0, 1e-6, 0.1, 1.0, 4.9999, 5.0, 16.9, 17.1, 100.0, 1e4, 1e8, 1e20, np.inf, -1.0, np.nan)
KEY_ROWS, START_ROWS = cuda_launch.KEY_ROWS, cuda_launch.START_ROWS
CONCENTRATION_ROWS, LOC_ROWS = cuda_launch.CONCENTRATION_ROWS, cuda_launch.LOC_ROWS
ARRAYS = cuda_launch.LOCS, cuda_launch.CONCENTRATIONS


class Found(NamedTuple):
    """The result of the launches of one part of the battery."""

    part: str
    launches: int
    angles: int
    faults: tuple[str, ...]


class Draw(NamedTuple):
    """A draw of `count` angles; each parameter is a scalar, or an array with one value for each angle."""

    start: int
    count: int
    loc: np.ndarray
    kappa: np.ndarray


@jax.jit
def _table(kappa):
    return piecewise.quantile_table(valid(kappa)).T


@functools.cache
def table(kappa):
    """Return the quantile's table in the form that a kernel reads."""
    return np.asarray(_table(jnp.float32(kappa)))


@functools.cache
def _plain(cipher, route, size):
    spec = cuda_launch.KernelSpec(cipher, route, "float32", (size,))
    return jax.jit(functools.partial(cuda_launch.plain_angles, spec))


def plain(kernel, key, draw):
    """Return the plain path's float32 angles of a `Draw`; only two sizes are drawn, since each compiles a program."""
    size, route = 4200 if draw.count <= 4200 else 66_000, "table" if "table" in kernel else "direct"
    loc, kappa = np.resize(draw.loc, size), draw.kappa if route == "table" else np.resize(draw.kappa, size)
    angles = _plain(kernel.split("_")[0], route, size)(key, halves(draw.start), loc, kappa)
    return np.asarray(angles)[: draw.count].astype(np.float64)


def right(kernel, key, draw, ours):
    """Return whether the angles `ours`, rounded to their dtype, agree with the plain path's to the accuracy of both."""
    kappa = np.where(draw.kappa > 0, draw.kappa, 0)  # both angles are NaN where it is negative or NaN
    expected, nothing = plain(kernel, key, draw), np.isnan(ours.astype(np.float32))
    same = nothing == np.isnan(expected)
    return (same & (nothing | rounded_from(ours, np.nan_to_num(expected), allowed(kappa)))).all()


class Battery:
    """Launches of one kernel by a `Machine`, with their number, their angles and their faults."""

    def __init__(self, machine, kernel):
        self.machine, self.kernel = machine, kernel
        self.cipher, self.by_table = kernel.split("_")[0], "table" in kernel
        self.dtypes = [kernel.split("_")[2]] if self.by_table else list(cuda_launch.KERNEL_DTYPES)
        self.random = np.random.default_rng(KERNELS.index(kernel))
        self.launches = self.angles = 0
        self.faults = []

    def key(self, *rows):
        """Return the random words of a key, or of one key for each row."""
        return self.random.integers(0, 2**32, (*rows, KEY_SIZES[self.cipher]), dtype=np.uint32)

    def launch(self, about, dtype, shape, flags, operands, *, grid=None, block=None, count=None, **how):
        """Launch a draw of `shape`, (rows, angles per row), and return the angles; None after a fault."""
        rows, size = shape
        count = size if count is None else count
        chosen = cuda_launch._grid(count, rows, self.by_table, bool(flags & CONCENTRATION_ROWS))
        key, start, concentration, loc = operands
        sizes = np.array([count % 2**32, count >> 32, rows, flags, cuda_launch.KERNEL_DTYPES[dtype]], np.uint32)
        out = np.empty(shape, jnp.dtype(dtype))
        if "offset" in how:
            out = Part(out, how.pop("offset") * out.itemsize)
        self.launches += 1
        self.angles += rows * size
        given = key, start, sizes, concentration, loc
        try:
            return self.machine.launch(self.kernel, grid or chosen[0], block or chosen[1], out, *given, **how)
        except Fault as fault:
            self.faults.append(f"{about}: {fault}")
            return None

    def compare(self, about, key, draw, ours):
        """Record a fault if the angles `ours` differ from the plain path's."""
        if ours is not None and not right(self.kernel, key, draw, ours):
            self.faults.append(f"{about}: {self.kernel}: the angles differ from the plain path's")

    def concentrations(self, kappa):
        """Return the operand for a concentration, or for an array of them."""
        return table(float(kappa)) if self.by_table else np.atleast_1d(kappa)

    def words(self):
        """Compare words exactly, with tables that make each angle the cell of a word's tail, or the place in the cell.

        This needs float32 angles from a table. For the other kernels, comparisons of angles reveal wrong words.
        """
        if not self.kernel.endswith("_table_float32"):
            return
        for start in STARTS:
            key = self.key()
            place = counter.indices((4099,), tuple(halves(start)))
            words = np.asarray(counter.block_words(self.cipher, jnp.asarray(key), place, 1)[0])
            for operand, angle in cuda_trial.tables():
                given = key, halves(start), operand, np.zeros(1, np.float32)
                ours = self.launch(f"words from {start}", "float32", (1, 4099), 0, given)
                expected = np.where(words & 1, -1, 1).astype(np.float32) * angle(words)
                if ours is not None and ours.tobytes() != expected.tobytes():
                    self.faults.append(f"words from {start}: {self.kernel}: the words differ from the package's")

    def tables(self):
        """Check every cell of the table that a block fills, and the extra cell at its end, for various block sizes."""
        if not self.by_table:
            return
        for threads in (256, 1, 2, 3, 96, 255):
            for rows, flags in ((1, 0), (4, 0), (4, CONCENTRATION_ROWS)):
                cells = self.random.normal(size=(rows if flags else 1, 512, 4)).astype(np.float32)
                given = self.key(), halves(0), cells, np.zeros(1, np.float32)
                about = f"the table of {threads} threads, flags {flags}"
                how = {"grid": (1, 1), "block": (threads, 1)}
                if self.launch(about, self.dtypes[0], (rows, 5), flags, given, **how) is not None:
                    a, b, c, d = cells[-1, -1].astype(np.float64)
                    place = np.float64(1 - 2.0**-19)
                    last = functools.reduce(lambda sum, each: np.float32(sum * place + each), (d, c, b, a))
                    held = self.machine.shared_memory(self.kernel).view(np.float32).reshape(-1, 4)
                    if not np.array_equal(held[:512], cells[-1]) or held[512, 0] != last:
                        self.faults.append(f"{about}: {self.kernel}: the table differs from the operand")

    def ends(self):
        """Compare angles where the tail probability is 1/2 or the smallest one, for the ciphers in `ENDS`."""
        key = np.arange(1, KEY_SIZES[self.cipher] + 1, dtype=np.uint32)
        for place in ENDS.get(self.cipher, ()):
            for j, kappa in enumerate(KAPPAS):
                draw, dtype = Draw(place - 3, 7, np.float32(0.5), np.float32(kappa)), self.dtypes[j % len(self.dtypes)]
                given = key, halves(draw.start), self.concentrations(draw.kappa), np.atleast_1d(draw.loc)
                about = f"{dtype} angles around {place}, concentration {kappa}"
                ours = self.launch(about, dtype, (1, 7), 0, given, error=ERRORS[j % 3])
                self.compare(about, key, draw, None if ours is None else ours[0])

    def directions(self):
        """Compare angles about the directions in `LOCS`, as an array and one by one."""
        for dtype in self.dtypes:
            for flags, loc in ((ARRAYS[0], np.resize(LOCS, 37)), *((0, each) for each in LOCS)):
                key, draw = self.key(), Draw(5, 37, loc, np.float32(3))
                given = key, halves(5), self.concentrations(draw.kappa), np.atleast_1d(loc)
                about = f"{dtype} angles about {loc if loc.ndim == 0 else LOCS}"
                ours = self.launch(about, dtype, (1, 37), flags, given)
                self.compare(about, key, draw, None if ours is None else ours[0])

    def sizes(self, sizes, starts):
        """Compare one row of each size, from starts inside groups and before carries, with scalars and arrays."""
        for j, size in enumerate(sizes):
            for start in (STARTS * 2)[j % len(STARTS) :][:starts]:
                for dtype in self.dtypes:
                    self.draw(start, size, dtype, ERRORS[j % 3])

    def draw(self, start, size, dtype, error, kappa=None):
        """Compare one row, with scalars and with arrays of parameters; in a small random grid, the threads loop."""
        for flags in (0, ARRAYS[0], ARRAYS[1], sum(ARRAYS)) if not self.by_table else (0, ARRAYS[0]):
            key, one = self.key(), kappa if kappa is not None else np.exp(self.random.uniform(-8, 14))
            many = np.exp(self.random.uniform(-8, 14, size)).astype(np.float32)
            loc = np.float32(self.random.uniform(-4, 4)), self.random.uniform(-300, 300, size).astype(np.float32)
            draw = Draw(start, size, loc[bool(flags & ARRAYS[0])], many if flags & ARRAYS[1] else np.float32(one))
            about = f"{size} {dtype} angles from {start}, flags {flags}"
            most = cuda_launch._grid(size, 1, self.by_table, False)[0][0]
            given = key, halves(start), self.concentrations(draw.kappa), np.atleast_1d(draw.loc)
            grid = int(self.random.integers(1, most + 1)), 1
            ours = self.launch(about, dtype, (1, size), flags, given, grid=grid, error=error)
            self.compare(about, key, draw, None if ours is None else ours[0])

    def extremes(self):
        """Compare draws at concentrations where the formula changes, at the ends of the range, and at invalid ones."""
        for j, kappa in enumerate(KAPPAS):
            self.draw(2**32 - 6, 515, self.dtypes[j % len(self.dtypes)], ERRORS[j % 3], kappa)

    def rows(self, shapes):
        """Compare rows of a `jax.vmap`, with every combination of shared and separate operands."""
        for rows, size in shapes:
            for flags in range(64):
                if not (self.by_table and flags & ARRAYS[1]):
                    self.launch_rows(rows, size, flags, self.dtypes[flags % len(self.dtypes)])

    def launch_rows(self, rows, size, flags, dtype, **how):
        """Launch rows with random operands, and compare some of them."""

        def of(flag, *shape):
            return (rows if flags & flag else 1, *shape)

        keys = self.key(*of(KEY_ROWS))
        starts = self.random.integers(0, 2**34, of(START_ROWS))
        locs = self.random.uniform(-4, 4, of(LOC_ROWS, size if flags & ARRAYS[0] else 1)).astype(np.float32)
        many = (size,) if flags & ARRAYS[1] else (1,)
        kappas = np.exp(self.random.uniform(-3, 9, of(CONCENTRATION_ROWS, *many))).astype(np.float32)
        if self.by_table:
            kappas = np.round(kappas, -1)  # so that few tables are needed
            concentrations = np.stack([table(float(k)) for k in kappas[:, 0]])
        else:
            concentrations = kappas
        given = keys, np.stack([halves(int(start)) for start in starts]), concentrations, locs
        about = f"{rows} rows of {size} {dtype} angles, flags {flags}, {how or 'the usual grid'}"
        ours = self.launch(about, dtype, (rows, size), flags, given, error=ERRORS[flags % 3], **how)
        for row in self.random.choice(rows, min(rows, 3), replace=False) if ours is not None else ():
            key, start, kappa, loc = (x[row if len(x) > 1 else 0] for x in (keys, starts, kappas, locs))
            draw = Draw(int(start), size, *(x if len(x) > 1 else x[0] for x in (loc, kappa)))
            self.compare(f"{about}: row {row}", key, draw, ours[row])

    def grids(self):
        """Compare rows for many shapes of grid and block, including more blocks than needed."""
        for block in BLOCKS:
            for grid in ((1, 1), (2, 1), (5, 3), (17, 1), (1, 9)):
                for flags in (0, 15):
                    high = block[1] if not (self.by_table and flags & CONCENTRATION_ROWS) else 1
                    self.launch_rows(7, 1030, flags, self.dtypes[0], grid=grid, block=(block[0], high))

    def slices(self):
        """Compare what blocks at the ends and near powers of two write, in draws of about 2^32 angles or more."""
        for count, start in ((2**32 + 4097, 0), (2**33 + 5, 2**32 - 3), (2**32 - 2, 2**64 - 2**33)):
            skew = start & 3
            blocks = -(-(count + skew + 3) // 1024)
            for flags in (0, sum(ARRAYS)) if not self.by_table else (0, ARRAYS[0]):
                for first in sorted({0, 2**20, 2**21 - 1, 2**22 - 2, blocks - 3}):
                    low, high = max(0, 1024 * first - skew), min(count, 1024 * (first + 3) - skew)
                    self.slice(count, start, flags, (first, min(first + 3, blocks)), (low, high), blocks)

    def slice(self, count, start, flags, blocks, place, grid):
        """Run some blocks of a large draw, and compare their angles."""
        low, size = place[0], place[1] - place[0]
        key, loc, kappa = self.key(), np.float32(0.5), np.float32(3)
        if flags & ARRAYS[0]:
            loc = self.random.uniform(-4, 4, size).astype(np.float32)
        if flags & ARRAYS[1]:
            kappa = np.exp(self.random.uniform(-3, 9, size)).astype(np.float32)
        operands = self.concentrations(kappa), np.atleast_1d(loc)
        # A kernel always reads the first value of each operand.
        operands = ((Part(x[:1], 0), Part(x, 4 * low)) if len(x) == size and low else x for x in operands)
        about = f"angles {low} to {place[1]} of {count} from {start}, flags {flags}"
        given = key, halves(start), *operands
        how = {"grid": (grid, 1), "block": (256, 1), "blocks": blocks, "count": count, "offset": low}
        ours = self.launch(about, self.dtypes[0], (1, size), flags, given, **how)
        draw = Draw((start + low) % 2**64, size, loc, kappa)
        self.compare(about, key, draw, None if ours is None else ours[0])

    def distant_rows(self):
        """Compare rows of one block, which loops, in a launch of 2^32 - 1 rows, the most that a word can count."""
        rows, size, high, over = 2**32 - 1, 5, 256, 65_535
        flags = KEY_ROWS | START_ROWS | LOC_ROWS | (0 if self.by_table else CONCENTRATION_ROWS)
        firsts = np.arange(high * (over - 1), rows, high * over, dtype=np.int64)
        counts = np.minimum(high, rows - firsts)
        dtype = self.dtypes[0]
        of_each = {
            "keys": lambda count: self.key(count),
            "starts": lambda count: self.random.integers(0, 2**32, (count, 2), dtype=np.uint32),
            "kappas": lambda count: np.exp(self.random.uniform(-3, 9, (count, 1))).astype(np.float32),
            "locs": lambda count: self.random.uniform(-4, 4, (count, 1)).astype(np.float32),
        }
        given = {name: [make(int(count)) for count in counts] for name, make in of_each.items()}
        if self.by_table:
            given["kappas"] = [np.full_like(x, 3) for x in given["kappas"]]

        def parts(arrays):
            return tuple(Part(x, int(first) * x[0].nbytes) for x, first in zip(arrays, firsts, strict=True))

        concentrations = table(3.0) if self.by_table else parts(given["kappas"])
        out = parts([np.empty((int(count), size), jnp.dtype(dtype)) for count in counts])
        sizes = np.array([size, 0, rows, flags, cuda_launch.KERNEL_DTYPES[dtype]], np.uint32)
        operands = parts(given["keys"]), parts(given["starts"]), sizes, concentrations, parts(given["locs"])
        self.launches += 1
        self.angles += size * int(counts.sum())
        how = {"blocks_over": (over - 1, over)}
        try:
            ours = self.machine.launch(self.kernel, (1, over), (1, high), out, *operands, **how)
        except Fault as fault:
            self.faults.append(f"{rows} rows: {fault}")
            return
        for j in (0, len(firsts) // 4, len(firsts) // 2, len(firsts) - 1):
            for row in (0, int(counts[j]) - 1):
                key, start, kappa, loc = (given[name][j][row] for name in of_each)
                draw = Draw(int(start[0]) << 32 | int(start[1]), size, loc[0], kappa[0])
                self.compare(f"row {firsts[j] + row} of {rows}", key, draw, ours[j][row])


def examine(machine, kernel, quick=False):
    """Yield a `Found` for each part of the battery of one kernel."""
    parts = {
        "words": Battery.words,
        "tables": Battery.tables,
        "sizes and starts": lambda battery: battery.sizes(QUICK_SIZES if quick else SIZES, 2 if quick else 5),
        "concentrations": Battery.extremes,
        "directions": Battery.directions,
        "ends of the tail": Battery.ends,
        "rows": lambda battery: battery.rows(ROWS[1:3] if quick else ROWS),
        "rows beyond 2^31": Battery.distant_rows,
        "grids": Battery.grids,
        "slices across 2^32": Battery.slices,
    }
    for name, part in parts.items():
        battery = Battery(machine, kernel)
        part(battery)
        if battery.launches:
            yield Found(name, battery.launches, battery.angles, tuple(battery.faults))


# Deliberate faults: a description, the kernel, a pattern of its text, and the replacement of the first match.
TABLE = "philox4x32_table_float32"
DAMAGES = (
    ("the end of the table off by one", TABLE, r"(setp\.lt\.s32 \t\S+ %r\d+, )512", r"\g<1>513"),
    ("the end of a row off by one", "philox4x32_direct", r"(setp\.lt\.s32 \t\S+ %r\d+, )3;", r"\g<1>2;"),
    ("four at once where three are left", "philox4x32_direct", r"(?s)(.*setp\.eq\.s32 \t\S+ %r\d+, )4;", r"\g<1>3;"),
    ("four at once at a misaligned place", "philox4x32_direct", r"(st\.global\.v4\.u32 \t\[%rd\d+)", r"\1+4"),
    ("no barrier after the table", TABLE, r"(?s)\A(.*?)bar\.sync \t0;", r"\1"),
    ("no barrier before a row's table", TABLE, r"(?s)\A(.*?bar.*?)bar\.sync \t0;", r"\1"),
    ("no barrier after a row's table", TABLE, r"(?s)\A(.*?bar.*?bar.*?)bar\.sync \t0;", r"\1"),
    ("a difference with its operands swapped", "philox4x32_direct", r"(sub\.s64 \t\S+ )(\S+), (\S+);", r"\1\3, \2;"),
    ("a choice with its operands swapped", "philox4x32_direct", r"(selp\.b64 \t\S+ )(\S+), (\S+),", r"\1\3, \2,"),
    ("the halves of a pair swapped", "philox4x32_table_bfloat16", r"(bf16x2\.f32 \S+ )(\S+), (\S+);", r"\1\3, \2;"),
    (
        "the place of a row cut to 32 bits",
        "philox4x32_direct",
        r"(mul\.lo\.s64 \t(%rd\d+), [^;]*;)",
        r"\1\n\tand.b64 \2, \2, 4294967295;",
    ),
    ("a stream that continues beyond its end", TABLE, "4611686014132420608", "-4294967296"),
    ("another key in a round of the cipher", TABLE, "1640531527", "1640531528"),
    ("a truncated coefficient", "philox4x32_direct", r"(mov\.f32 \t\S+ 0f3E[0-9A-F]{3})[0-9A-F]{3};", r"\g<1>000;"),
)


def damaged(kernel, pattern, replacement):
    """Return the shipped text with a fault in one kernel."""
    before, entry, after = cuda_launch.ptx_text().partition(f".visible .entry {kernel}(")
    changed = re.sub(pattern, replacement, after, count=1)
    if changed == after:
        raise ValueError(f"nothing to damage in {kernel}: {pattern}")
    return before + entry + changed


def finding(kernel, pattern, replacement):
    """Return the first fault that the battery finds in a damaged kernel, or None."""
    machine = Machine(damaged(kernel, pattern, replacement))
    return next((found.faults[0] for found in examine(machine, kernel, quick=True) if found.faults), None)
