"""Count equations, instructions and kernels of the programs that users wait for, since compile time follows them.

From the repository root::

    python -m tools.cpu_programs            # writes tools/cpu_programs.csv
    python -m tools.cpu_programs --check    # exit code 1 if a program is larger than in the file

Any release of JAX counts the equations that it traces. The optimised instructions, fused ones included, and the fused
kernels depend on the compiler, so only `RELEASE` counts them, for a processor with AVX2. On a CPU, a kernel takes about
15 ms, and an instruction 0.3 ms.
"""

import argparse
import csv
import os
import pathlib
import sys

TABLE = pathlib.Path(__file__).with_suffix(".csv")
RELEASE = "0.8.0"
# Growth that --check allows.
ROOM = 1.1


def programs():
    """Yield the name and the function of each program, and its arguments."""
    import jax
    import jax.numpy as jnp

    import jax_von_mises as jvm
    from jax_von_mises.pairs import fit as pairs_fit
    from jax_von_mises.pairs import models
    from jax_von_mises.pairs.clusters import over_pairs
    from jax_von_mises.sphere.clusters import over_directions
    from jax_von_mises.von_mises.clusters import over_angles

    def floats(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def total_of(draw):
        return jax.grad(lambda k, *rest: draw(k, *rest).sum())

    def fisher(k, key, pole):
        return jvm.VonMisesFisher(pole, k).sample(key, (1000,))

    def draws(k, key):
        return jvm.sample_von_mises(key, 0.0, k, (1000,))

    def circular(k):
        return jvm.CircularDistribution(lambda x, k: k * jnp.cos(x), k)

    key, one, many = jax.eval_shape(lambda: jax.random.key(0)), floats(), floats(1000)
    pair, directions = (one,) * 5, floats(1000, 10)
    yield "draw of 1", lambda k, key: jvm.sample_von_mises(key, 0.0, k), (one, key)
    yield "draws, 1,000", draws, (one, key)
    yield "draws, 2^20", lambda k, key: jvm.sample_von_mises(key, 0.0, k, (2**20,)), (one, key)
    yield "draws, a concentration each", draws, (many, key)
    yield "gradient of draws", total_of(draws), (one, key)
    yield "log_prob", lambda x, k: jvm.log_prob(x, 0.0, k), (many, one)
    yield "gradient of log_prob", total_of(lambda k, x: jvm.log_prob(x, 0.0, k)), (one, many)
    yield "cdf", lambda x, k: jvm.cdf(x, 0.0, k), (many, one)
    yield "icdf", lambda q, k: jvm.icdf(q, 0.0, k), (many, one)
    yield "fit", jvm.fit, (many,)
    yield "sample_truncated", lambda k, key: jvm.sample_truncated(key, 0.0, k, -1.0, 2.0, (1000,)), (one, key)
    for d in (3, 10):
        yield f"VonMisesFisher, draws, d = {d}", fisher, (one, key, floats(d))
    yield "VonMisesFisher, gradient of draws, d = 10", total_of(fisher), (one, key, floats(10))
    yield (
        "VonMisesFisher, log_prob",
        lambda x, k, pole: jvm.VonMisesFisher(pole, k).log_prob(x),
        (
            directions,
            one,
            floats(10),
        ),
    )
    for kind in (jvm.SineBivariateVonMises, jvm.CosineBivariateVonMises):
        name = kind.__name__
        yield f"{name}, draws", lambda key, *p, kind=kind: kind(*p).sample(key, (1000,)), (key, *pair)
        yield f"{name}, log_prob", lambda x, *p, kind=kind: kind(*p).log_prob(x), (floats(1000, 2), *pair)
    yield "CircularDistribution, draws", lambda k, key: circular(k).sample(key, (1000,)), (one, key)
    yield "CircularDistribution, log_prob", lambda k, x: circular(k).log_prob(x), (one, many)
    samples = floats(1, 2, 1024), floats(1, 1024), floats(1, 4)
    angles = floats(1, 1, 1024), *samples[1:], floats(1, 4, 2, 1)
    yield "a step of Mixture.fit, angles", lambda *p: over_angles(*p, tied=False), angles
    directions = floats(1, 3, 1024), *samples[1:], floats(1, 4, 4)
    yield "a step of Mixture.fit, directions", lambda *p: over_directions(*p, tied=False), directions
    yield "a step of Mixture.fit, pairs", lambda *p: over_pairs(*p, models.Sine), (*samples, floats(1, 4, 6))
    yield "a step of a fit of pairs", lambda k: pairs_fit.cumulant_rows(models.Sine, k), (floats(3, 2),)


def equations(jaxpr, seen=()):
    """Return the number of equations; those of an inner program count once, however often it is called."""
    seen = set(seen) if isinstance(seen, tuple) else seen
    count = len(jaxpr.eqns)
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for each in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(each, "jaxpr", each)
                if hasattr(inner, "eqns") and id(inner) not in seen:
                    seen.add(id(inner))
                    count += equations(inner, seen)
    return count


def counted(compiled):
    """Return a row for each program; only those of `compiled` programs have instructions and kernels."""
    import jax

    found = {}
    for name, function, arguments in programs():
        row = {"equations": equations(jax.make_jaxpr(function)(*arguments).jaxpr)}
        if compiled:
            text = jax.jit(function).lower(*arguments).compile().as_text()
            row |= {"instructions": text.count(" = "), "kernels": text.count(" fusion(")}
        found[name] = row
        print(f"{name:50} {row}", file=sys.stderr, flush=True)
    return found


def worse(found, table):
    """Yield a description of each program that is larger than in the table."""
    for name in table.keys() ^ found.keys():
        yield f"{name}: only in {'the table' if name in table else 'the code'}; run python -m tools.cpu_programs"
    for name in table.keys() & found.keys():
        for what, have in found[name].items():
            if have > ROOM * table[name][what]:
                yield f"{name}: {have} {what}, but {table[name][what]} in the table"


def read():
    """Return the table."""
    with open(TABLE, newline="") as file:
        rows = list(csv.DictReader(file))
    return {row.pop("program"): {what: int(count) for what, count in row.items()} for row in rows}


def main():
    """Write the table, or compare the counts with it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; compare with the file")
    given = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_cpu_max_isa=AVX2"
    import jax

    right = jax.__version__ == RELEASE
    if given.check:
        faults = list(worse(counted(right), read()))
        print("\n".join(faults) or "no program is larger than in the table")
        return 1 if faults else 0
    if not right:
        parser.error(f"the table is of JAX {RELEASE}, not {jax.__version__}: run .venv-oldest/bin/python")
    rows = [{"program": name} | row for name, row in counted(compiled=True).items()]
    with open(TABLE, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
