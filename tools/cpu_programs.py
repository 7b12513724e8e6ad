"""Count the equations of the programs that users wait for, since the time of a first call follows them.

From the repository root::

    python -m tools.cpu_programs            # writes tools/cpu_programs.csv
    python -m tools.cpu_programs --check    # exit code 1 if a program is larger than in the file

The programs are every method of every class, and the functions of the package. A thousand equations take 0.3 to 1 s to
compile on a CPU. Releases of JAX trace up to a fifth more or less, so the table is of one of them.
"""

import argparse
import csv
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jax_von_mises as jvm
from tests.distributions.conformance.examples import EXAMPLES, PLAIN, called, methods

TABLE = pathlib.Path(__file__).with_suffix(".csv")
RELEASE = "0.10.2"
# Growth that --check allows.
ROOM = 1.1
# Kinds of distributions whose methods are counted; the others differ in the formulas of what they are made of.
KINDS = sorted(PLAIN | {"SineSkewed VonMises", "Mixture VonMises", "Mixture VonMisesFisher"})


def programs() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Yield the name and the function of each program, and its arguments."""
    key, k, x = jax.random.key(0), np.float32(2), np.linspace(-3, 3, 1000, dtype=np.float32)
    many = np.full(1000, k)
    yield "sample_von_mises, 1", lambda key, k: jvm.sample_von_mises(key, 0.0, k), (key, k)
    for name, count, each in (("1,000", 1000, k), ("2^20", 2**20, k), ("a concentration each", 1000, many)):

        def draws(key: Any, k: Any, count: int = count) -> Any:
            return jvm.sample_von_mises(key, 0.0, k, (count,))

        yield f"sample_von_mises, {name}", draws, (key, each)
        yield f"sample_von_mises, {name}, gradient", jax.grad(lambda k, key, f=draws: f(key, k).sum()), (each, key)
    yield "sample_truncated", lambda key, k: jvm.sample_truncated(key, 0.0, k, -1.0, 2.0, (1000,)), (key, k)
    for name in ("log_prob", "cdf", "sf"):
        yield name, lambda x, k, name=name: getattr(jvm, name)(x, 0.0, k), (x, k)
    yield "icdf", lambda q, k: jvm.icdf(q, 0.0, k), (np.abs(x) / 3, k)
    yield "fit", jvm.fit, (x,)
    for kind in KINDS:
        example = EXAMPLES[kind]
        one = example.make(**example.one())
        for method in methods(one):
            yield f"{kind}.{method}", lambda one, method=method: called(one, method, (1000,)), (one,)
        yield f"{kind}.sample, gradient", jax.grad(lambda one: called(one, "sample", (1000,)).sum()), (one,)


def equations(jaxpr: Any, seen: set[int]) -> int:
    """Return the number of equations; those of an inner program count once, however often it is called."""
    count = len(jaxpr.eqns)
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for each in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(each, "jaxpr", each)
                if hasattr(inner, "eqns") and id(inner) not in seen:
                    seen.add(id(inner))
                    count += equations(inner, seen)
    return count


def counted() -> dict[str, int]:
    """Return the number of equations of each program."""
    return {
        name: equations(jax.make_jaxpr(function)(*arguments).jaxpr, set()) for name, function, arguments in programs()
    }


def worse(found: dict[str, int], table: dict[str, int]) -> Iterator[str]:
    """Yield a description of each program that is larger than in the table."""
    for name in table.keys() ^ found.keys():
        yield f"{name}: only in {'the table' if name in table else 'the code'}; run python -m tools.cpu_programs"
    for name in table.keys() & found.keys():
        if found[name] > ROOM * table[name]:
            yield f"{name}: {found[name]} equations, but {table[name]} in the table"


def read() -> dict[str, int]:
    """Return the table."""
    with open(TABLE, newline="") as file:
        return {row["program"]: int(row["equations"]) for row in csv.DictReader(file)}


def main() -> int:
    """Write the table, or compare the counts with it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; compare with the file")
    given = parser.parse_args()
    if jax.__version__ != RELEASE:
        parser.error(f"the table is of JAX {RELEASE}, not {jax.__version__}")
    found = counted()
    if given.check:
        faults = list(worse(found, read()))
        print("\n".join(faults) or "no program is larger than in the table")
        return 1 if faults else 0
    with open(TABLE, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["program", "equations"])
        writer.writerows(found.items())
    return 0


if __name__ == "__main__":
    sys.exit(main())
