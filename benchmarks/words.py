"""Test the random words behind the angles with PractRand.

``python -m benchmarks.words`` pipes the words, as the sampler uses them, into PractRand's ``RNG_test`` [1]_. It tests
2^36 bytes in each of three orders, which represent the ways in which users derive numbers from one seed.

- ``stream``: the words of one key.
- ``keys``: a word from each of 4096 keys made by ``fold_in``, then the next word of each, and so on.
- ``split``: the first 64 words of each key in a long sequence made by ``fold_in``.

PractRand also tests the lowest bits of the words separately. It is not a Python package. Build it, and put its
``RNG_test`` on the path or pass its location with ``--practrand``. For other test programs, ``--raw`` writes the words
to standard output.

.. [1] C. Doty-Humphrey. PractRand, version 0.94 or newer. https://pracrand.sourceforge.net
"""

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import numpy as np

from benchmarks import environment
from benchmarks.files import finish, new_file
from benchmarks.text import environment_text, positive, table

__all__ = ["CIPHERS", "ORDERS", "Report", "blocks", "main", "parse"]

FORMAT = 1
SEED = 20261121
BLOCK = 2**22  # words per call
LANES = 2**12  # keys that take turns in the order `keys`
SHORT = 64  # words of each key in the order `split`
CIPHERS = ("threefry2x32", "threefry4x32", "philox2x32", "philox4x32")
# log2 of the number of tested bytes.
TESTED = {"quick": 30, "full": 36}


def stream(key):
    """Return a function that maps the index of a block to its words, all from one key."""
    import jax

    from jax_von_mises.sampling import counter

    draw = jax.jit(lambda key, high, low: counter.words(key, (BLOCK,), 1, (high, low))[0])
    return lambda i: draw(key, *counter.halves(i * BLOCK))


def keys(key):
    """Return a function that maps the index of a block to its words, from many keys in turn."""
    import jax

    from jax_von_mises.sampling import counter

    each = jax.jit(jax.vmap(jax.random.fold_in, (None, 0)))(key, np.arange(LANES, dtype=np.uint32))
    size = BLOCK // LANES

    def draw(each, high, low):
        return jax.vmap(lambda key: counter.words(key, (size,), 1, (high, low))[0], out_axes=1)(each).reshape(-1)

    compiled = jax.jit(draw)
    return lambda i: compiled(each, *counter.halves(i * size))


def split(key):
    """Return a function that maps the index of a block to the first words of its keys; there are at most 2^32 keys."""
    import jax
    import jax.numpy as jnp

    from jax_von_mises.sampling import counter

    count = BLOCK // SHORT

    def draw(key, first):
        each = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(count, dtype=jnp.uint32))
        return jax.vmap(lambda key: counter.words(key, (SHORT,), 1)[0])(each).reshape(-1)

    compiled = jax.jit(draw)
    return lambda i: compiled(key, np.uint32(i * count))


ORDERS = {"stream": stream, "keys": keys, "split": split}


def blocks(cipher, order, seed=SEED):
    """Yield arrays of `BLOCK` uint32 words without end; the device computes one array ahead."""
    import jax

    make = ORDERS[order](jax.random.key(seed, impl=cipher))
    following = make(0)
    number = 0
    while True:
        current, number = following, number + 1
        following = make(number)
        yield np.asarray(current).astype("<u4", copy=False)


class Report(NamedTuple):
    """PractRand's last report: log2 of the bytes, the number of tests, and the anomalous lines."""

    power: int
    tests: int
    unusual: tuple[str, ...]
    failed: tuple[str, ...]

    @property
    def passed(self):
        """Whether no test failed; even truly random words give a few unusual lines."""
        return not self.failed


LENGTH = re.compile(r"length= .*\(2\^(\d+(?:\.\d+)?) bytes\)")
ODD = re.compile(r" R[=<>]")
NORMAL = re.compile(r"(?:no anomalies in|\.\.\.and) (\d+) test result\(s\)")


def parse(text):
    """Return PractRand's report for the last length in its output; raise ValueError if there is none."""
    places = list(LENGTH.finditer(text))
    if not places:
        raise ValueError(f"RNG_test reported no tested length: {text.strip()[-200:]!r}")
    detail = text[places[-1].end() :]
    lines = [" ".join(line.split()) for line in detail.splitlines()]
    # One line for each anomalous test: name, raw value, p-value, verdict.
    odd = [line for line in lines if ODD.search(line)]
    normal = sum(int(found[1]) for found in NORMAL.finditer(detail))
    return Report(
        int(float(places[-1][1])),
        normal + len(odd),
        tuple(line for line in odd if "FAIL" not in line),
        tuple(line for line in odd if "FAIL" in line),
    )


def examine(program, source, power, say=print):
    """Pipe blocks of words into ``RNG_test`` until it has read ``2**power`` bytes; return its `Report`."""
    command = [program, "stdin32", "-tlmin", str(min(power, 27)), "-tlmax", str(power), "-multithreaded"]
    lines = []

    def listen(pipe):
        for line in pipe:
            lines.append(line.decode(errors="replace"))
            say(lines[-1].rstrip())

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        listener = threading.Thread(target=listen, args=(child.stdout,))
        listener.start()
        try:
            for block in source:
                child.stdin.write(block.data)
        except BrokenPipeError:
            pass  # PractRand has read enough, or found a failure
        except BaseException:
            child.kill()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            listener.join()
    return parse("".join(lines))


def parser():
    """Build the argument parser."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.words", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="test 2^{quick} bytes in each order instead of 2^{full}".format(**TESTED)
    )
    parser.add_argument("--power", type=positive, metavar="N", help="test 2^N bytes in each order")
    parser.add_argument("--ciphers", nargs="+", choices=CIPHERS, default=CIPHERS[:1], metavar="CIPHER")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS), metavar="ORDER")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the key; default: %(default)s")
    parser.add_argument(
        "--practrand", default="RNG_test", metavar="PROGRAM", help="PractRand's RNG_test; default: %(default)s"
    )
    parser.add_argument(
        "--raw", action="store_true", help="write words of the first cipher and order to standard output, without end"
    )
    parser.add_argument("--json", metavar="FILE", type=new_file, help="write the reports and the environment")
    return parser


def write_raw(options):
    """Write words until the reader closes the pipe."""
    try:
        for block in blocks(options.ciphers[0], options.orders[0], options.seed):
            sys.stdout.buffer.write(block.data)
    except BrokenPipeError:
        # Otherwise Python would fail again when it flushes at exit.
        sys.stdout = None
    return 0


def main(arguments=None):
    """Run the tests; return 0 if all pass, 1 if one fails, 2 if PractRand is missing, and 130 if interrupted."""
    options = parser().parse_args(arguments)
    if options.raw:
        return write_raw(options)
    program = shutil.which(options.practrand)
    if program is None:
        print(
            f"PractRand's RNG_test was not found as {options.practrand}. Build it (https://pracrand.sourceforge.net) "
            "and put it on the path or pass its location with --practrand. To use another test program, pipe the words "
            "of --raw into it.",
            file=sys.stderr,
        )
        return 2
    power = options.power or TESTED["quick" if options.quick else "full"]
    start = time.perf_counter()
    machine = environment.describe()
    print(environment_text(machine))
    rows = []
    try:
        for cipher in options.ciphers:
            for order in options.orders:
                print(f"\n{cipher}, {order}: 2^{power} bytes", flush=True)
                begun = time.perf_counter()
                report = examine(program, blocks(cipher, order, options.seed), power)
                rows.append({"cipher": cipher, "order": order, "seconds": time.perf_counter() - begun})
                rows[-1] |= report._asdict() | {"passed": report.passed and report.power >= power}
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    print(f"\n{summary(rows)}")
    settings = {"mode": "quick" if options.quick else "full", "rounds": 1, "power": power, "seed": options.seed}
    result = {"format": FORMAT, "program": "words", "environment": machine, "options": settings, "streams": rows}
    finish(start, options.json, result)
    return 0 if all(row["passed"] for row in rows) else 1


def summary(rows):
    """Return all reports as a table."""
    lines = [("words", "bytes", "tests", "unusual", "failed", "")]
    for row in rows:
        verdict = "passed" if row["passed"] else "FAILED"
        cells = (f"2^{row['power']}", row["tests"], len(row["unusual"]), len(row["failed"]), verdict)
        lines.append((f"{row['cipher']}, {row['order']}", *cells))
    return table(lines)


if __name__ == "__main__":
    sys.exit(main())
