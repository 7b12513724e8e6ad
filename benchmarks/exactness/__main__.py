"""Draw and count angles, and report the verdicts."""

import argparse
import functools
import signal
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_von_mises as jvm
from benchmarks import environment
from benchmarks.exactness import counting, expected, report, verdicts, words
from benchmarks.exactness.damage import DAMAGES
from benchmarks.text import new_file, table
from jax_von_mises.engine import counter

__all__ = ["Distribution", "examine", "main", "run", "sampler", "shares"]

SEED = 20261121
BLOCK = 2**22  # angles per call of the sampler
BINS = 2**16
QUICK = 2**26
FULL = {"cpu": 10**10, "gpu": 10**12}
# How many of the `words.CHUNKS` chunks of tail probabilities to check.
CHUNKS = {"some": 4, "every": words.CHUNKS}


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


def integer(text):
    """Parse a number of angles, such as 1e10."""
    value = float(text)
    if not (value >= 1 and value == int(value)):
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, not {text}")
    return int(value)


def parser():
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.exactness", description="Test whether the angles follow their distribution."
    )
    parser.add_argument("--quick", action="store_true", help=f"draw {QUICK:,} angles: three minutes on two cores")
    parser.add_argument(
        "--angles", type=integer, metavar="N", help="number of angles; default: 1e10 on a CPU, 1e12 on a GPU"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the key; default: %(default)s")
    text = "check the angles at some tail probabilities or at every one; default: some with --quick, else every"
    parser.add_argument("--words", choices=CHUNKS, help=text)
    parser.add_argument("--out", metavar="FILE.csv", type=new_file, help="write a line for each distribution")
    text = f"test a damaged sampler, which the tests must report: {', '.join(map(repr, DAMAGES))}, or all"
    parser.add_argument("--damage", choices=[*DAMAGES, "all"], metavar="NAME", help=text)
    return parser


def sampler(dtype, method):
    """Return the package's ``draw(key, k, start, count)``."""

    def draw(key, k, start, count):
        return jvm.sample_block(key, jnp.float32(0), k, start, (count,), dtype, method=method)

    return draw


def progress(name, number, what, start):
    """Print what was done since `start`, and the rate."""
    rate = number / (time.perf_counter() - start) / 1e6
    print(f"  {name}: {number:,} {what}, {rate:.0f} million per second", flush=True)


def examine(distribution, draw, key, blocks):
    """Count `blocks` blocks of angles and judge them; return the verdicts."""
    name, dtype = distribution.name, distribution.dtype
    k = float(np.float32(distribution.concentration))
    bins = expected.bins(k, dtype, BINS)
    tails = expected.tails(k) if dtype == "float32" else expected.NO_TAILS
    mean = expected.moments(k, (1,), dtype)["versine"][0, 0]
    key = jvm.derive_key(key, name)
    keys = key, jax.random.split(key)[0]
    at_once, sums, start = counting.at_once(), {}, time.perf_counter()
    for first in range(0, blocks, at_once):
        number = min(at_once, blocks - first)
        new = counting.count_blocks(first, number, draw, keys, k, bins, tails, mean, BLOCK)
        sums = {field: sums[field] + each for field, each in new.items()} if sums else new
    progress(name, blocks * BLOCK, "angles", start)
    found = verdicts.of_counts(sums, bins, tails, k, dtype)
    if dtype == "float32":
        data = [int(each) for each in jax.random.key_data(key)]
        found.append(words.stream(lambda i, count: draw(key, np.float32(k), counter.halves(i), count), data, k))
    return found


def look_up(distribution, number):
    """Check `number` chunks of tail probabilities; return the verdict, and the largest error relative to the bound."""
    start = time.perf_counter()
    share = words.largest_error(float(np.float32(distribution.concentration)), distribution.method, number)
    progress(distribution.name, number * words.CHUNK, "tail probabilities", start)
    return words.verdict(share, number), share


def run(angles, chunks, seed=SEED, distributions=DISTRIBUTIONS):
    """Examine all distributions.

    Parameters
    ----------
    angles : int
        Total number of angles, shared among the distributions by weight.
    chunks : int
        How many chunks of tail probabilities are checked.
    seed : int
    distributions : sequence of Distribution

    Returns
    -------
    list of tuple
        For each distribution: itself, its number of angles, its verdicts, and the largest error relative to the bound,
        which is None for dtypes without this check.
    """
    key, blocks = jax.random.key(seed), shares(angles, distributions)
    draw = functools.cache(sampler)  # one program for all concentrations; a new one in each run, whose path may differ
    found = []
    for each in distributions:
        tests, share = examine(each, draw(each.dtype, each.method), key, blocks[each]), None
        if each.dtype == "float32":
            test, share = look_up(each, chunks)
            tests.append(test)
        found.append((each, blocks[each] * BLOCK, tests, share))
    return found


def damaged(names, angles, seed):
    """Test damaged samplers; return 0 if each that could be tested was reported, and 1 otherwise."""
    missed = []
    for name in names:
        draw, concentration = DAMAGES[name]
        distribution = Distribution(concentration)
        blocks = shares(angles, [distribution])[distribution]
        try:
            found = examine(distribution, jax.jit(draw, static_argnums=3), jax.random.key(seed), blocks)
        except ImportError as error:
            print(f"{name}: not tested, {error}")
            continue
        reported = "; ".join(each.test for each in verdicts.alarms(found))
        outcome = f"Reported: {reported}" if reported else "NOT REPORTED"
        print(f"{name}: {draw.__doc__} {outcome}", flush=True)
        missed += [] if reported else [name]
    return 1 if missed else 0


def intact(options, machine):
    """Test the package's sampler and write the file; return 0 if no test reports an error, and 1 otherwise."""
    start = time.perf_counter()
    angles = options.angles or (QUICK if options.quick else FULL.get(jax.default_backend(), FULL["cpu"]))
    found = run(angles, CHUNKS[options.words or ("some" if options.quick else "every")], options.seed)
    tests = [(each.name, test) for each, _, some, _ in found for test in some]
    reported = verdicts.alarms([test for _, test in tests])
    rows = [report.row(each.name, *others) for each, *others in found]
    print(f"\n{table([report.COLUMNS, *rows])}\n")
    for name, test in tests:
        if test in reported:
            print(f"REPORTED: {name}, {test.test}: {test.found} (p < {test.p:.1e})")
    drawn, seconds = sum(number for _, number, *_ in found), time.perf_counter() - start
    odds = f"a sampler within its guaranteed error is reported once in {1 / verdicts.FALSE_ALARM:,.0f} runs"
    outcome = f"{len(tests)} tests on {drawn:,} angles, {len(reported)} reported; {odds}"
    print(f"{outcome}\n{seconds:.0f} s in total")
    if options.out:
        about = {"date": time.strftime("%Y-%m-%d"), "angles": drawn, "seconds": f"{seconds:.0f}", "seed": options.seed}
        report.write(options.out, machine | about | {"outcome": outcome}, rows)
        print(f"written to {options.out}")
    return 1 if reported else 0


def main(arguments=None):
    """Run the tests and return the exit code.

    The code is 0 if no test reports an error, 1 if one does, and 130 after an interruption. With ``--damage``, it is 0
    if every damaged sampler is reported and 1 if not.
    """
    options = parser().parse_args(arguments)
    machine = environment.describe()
    print(environment.text(machine))
    try:
        if options.damage:
            names = DAMAGES if options.damage == "all" else [options.damage]
            return damaged(names, options.angles or QUICK, options.seed)
        return intact(options, machine)
    except KeyboardInterrupt:
        print("\ninterrupted; nothing is kept", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
