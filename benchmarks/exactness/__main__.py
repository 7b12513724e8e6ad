"""Draw and count angles, keep the counts, and report the verdicts."""

import argparse
import functools
import signal
import sys
import time
from typing import NamedTuple

import numpy as np

from benchmarks import environment
from benchmarks.exactness import counting, every_word, expected, pictures, plan, stream, verdicts
from benchmarks.exactness.damage import DAMAGES
from benchmarks.exactness.state import State
from benchmarks.files import finish, new_file, rounded
from benchmarks.text import environment_text, table
from jax_von_mises.sampling import counter

__all__ = ["SEED", "Examined", "by_distribution", "examine", "main", "run", "sentence"]

FORMAT = 2  # format of the result file
STATE = 3  # format of the state file; increase it when the sums change
SEED = 20261121


def angles(text):
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
    parser.add_argument("--quick", action="store_true", help=f"draw {plan.QUICK:,} angles: under a minute on two cores")
    parser.add_argument(
        "--angles", type=angles, metavar="N", help="number of angles; default: 1e10 on a CPU, 1e12 on a GPU"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the key; default: %(default)s")
    text = "check the angles at some tail probabilities or at every one; default: some with --quick, else every"
    parser.add_argument("--words", choices=plan.WORDS, help=text)
    text = "keep the counts in this file, and continue from it"
    parser.add_argument("--state", metavar="FILE", type=new_file, help=text)
    text = "write the verdicts and the input of benchmarks.exactness.pictures to this file"
    parser.add_argument("--json", metavar="FILE", type=new_file, help=text)
    text = f"test a damaged sampler, which the tests must report: {', '.join(map(repr, DAMAGES))}, or all"
    parser.add_argument("--damage", choices=[*DAMAGES, "all"], metavar="NAME", help=text)
    return parser


def sampler(dtype, method):
    """Return the package's ``draw(key, k, start, count)``."""
    import jax.numpy as jnp

    import jax_von_mises as jvm

    def draw(key, k, start, count):
        return jvm.sample_block(key, jnp.float32(0), k, start, (count,), dtype, method=method)

    return draw


def rate_text(number, start):
    """Return the rate of `number` angles since `start`, as text."""
    if not number:
        return "all from the state file"
    return f"{number / (time.perf_counter() - start) / 1e6:.0f} million per second"


class Examined(NamedTuple):
    """The verdicts on one distribution, and the data for its pictures."""

    verdicts: list
    shown: dict


def examine(distribution, draw, key, blocks, state, say=print):
    """Count `blocks` blocks of angles, including those in `state`, and judge them; return `Examined`."""
    import jax

    from jax_von_mises import derive_key

    name, dtype = distribution.name, distribution.dtype
    k = float(np.float32(distribution.concentration))
    bins = expected.bins(k, dtype, plan.BINS)
    tails = expected.tails(k) if dtype == "float32" else expected.NO_TAILS
    mean = expected.moments(k, (1,), dtype)["versine"][0, 0]
    key = derive_key(key, name)
    keys = key, jax.random.split(key)[0]
    at_once = counting.at_once()
    start, done = time.perf_counter(), int(state.sums.get(name, {}).get("angles", 0)) // plan.BLOCK
    for first in range(done, blocks, at_once):
        number = min(at_once, blocks - first)
        state.add(name, counting.count_blocks(first, number, draw, keys, k, bins, tails, mean, plan.BLOCK))
    say(f"  {name}: {blocks * plan.BLOCK:,} angles, {rate_text((blocks - done) * plan.BLOCK, start)}", flush=True)
    sums = state.sums[name]
    found = verdicts.of_counts(sums, bins, tails, k, dtype)
    if dtype == "float32":
        data = [int(each) for each in jax.random.key_data(key)]
        found.append(stream.check(lambda i, count: draw(key, np.float32(k), counter.halves(i), count), data, k))
    return Examined(found, pictures.summary(sums, bins, tails))


def look_up(distribution, number, state, say=print):
    """Compare the angles at `number` chunks of tail probabilities with the quantiles; return the largest errors."""
    name = f"{distribution.name}, words"
    before = dict(state.sums.get(name, {}))
    done = int(before.pop("done", 0))
    chosen = every_word.chunks(number)
    start = time.perf_counter()

    def keep(chunk, worst):
        state.put(name, {"done": np.searchsorted(chosen, chunk) + 1, **worst._asdict()})

    k = float(np.float32(distribution.concentration))
    worst = every_word.Worst(**before) if done else None
    worst = every_word.check(k, distribution.method, chosen[done:], worst, keep) if done < len(chosen) else worst
    size, new = (n * every_word.CHUNK for n in (len(chosen), len(chosen) - done))
    say(f"  {distribution.name}: {size:,} tail probabilities, {rate_text(new, start)}", flush=True)
    return worst


def run(angles, words, state=None, seed=SEED, distributions=plan.DISTRIBUTIONS, say=print):
    """Examine all distributions.

    Parameters
    ----------
    angles : int
        Total number of angles, shared among the distributions by weight.
    words : {"some", "every"}
        How many tail probabilities are checked.
    state : Path, optional
        File that keeps the counts.
    seed : int
    distributions : sequence of plan.Distribution

    Returns
    -------
    found : dict of plan.Distribution to Examined
        The results.
    drawn : int
        The number of angles, including those counted in `state` before.
    """
    import jax

    chunks = plan.WORDS[words]
    identity = {"format": STATE, "seed": seed, "block": plan.BLOCK, "bins": plan.BINS, "chunks": chunks}
    kept = State(state, identity)
    key = jax.random.key(seed)
    blocks = plan.shares(angles, distributions)
    draw = functools.cache(sampler)  # one program for all concentrations; a new one in each run, whose path may differ
    found = {}
    try:
        for each in distributions:
            found[each] = examine(each, draw(each.dtype, each.method), key, blocks[each], kept, say)
            if each.dtype == "float32":
                worst = look_up(each, chunks, kept, say)
                found[each].verdicts.append(every_word.verdict(worst, len(every_word.chunks(chunks))))
                found[each].shown["worst"] = {name: values.tolist() for name, values in worst._asdict().items()}
    finally:
        kept.save()
    return found, sum(blocks.values()) * plan.BLOCK


def by_distribution(result):
    """Yield the name, the picture data, the number of tests and the least likely verdict of each distribution."""
    for name, shown in result["laws"].items():
        tests = [verdict for verdict in result["verdicts"] if verdict["law"] == name]
        yield name, shown, len(tests), min(tests, key=lambda verdict: verdict["p"])


def sentence(result):
    """Return a sentence that states the outcome."""
    odds = f"a sampler within its guaranteed error is reported once in {1 / result['false_alarm']:,.0f} runs"
    return f"{len(result['verdicts'])} tests on {result['angles']:,} angles, {result['reported']} reported; {odds}"


def main(arguments=None):
    """Run the tests and return the exit code.

    The code is 0 if no test reports an error, 1 if one does, 2 if the state file cannot be used, and 130 after an
    interruption. With ``--damage``, it is 0 if every damaged sampler is reported and 1 if not.
    """
    import jax

    options = parser().parse_args(arguments)
    start = time.perf_counter()
    machine = environment.describe()
    print(environment_text(machine))
    if options.damage:
        return damaged(options)
    angles = options.angles or (plan.QUICK if options.quick else plan.FULL.get(jax.default_backend(), plan.FULL["cpu"]))
    words = options.words or ("some" if options.quick else "every")
    try:
        examined, drawn = run(angles, words, options.state, options.seed)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = f"continue with --state {options.state}" if options.state else "nothing is kept without --state"
        print(f"\ninterrupted; {kept}", file=sys.stderr)
        return 128 + signal.SIGINT
    rows = [(each, verdict) for each, one in examined.items() for verdict in one.verdicts]
    reported = verdicts.alarms([verdict for _, verdict in rows])
    result = rounded(
        {
            "format": FORMAT,
            "program": "exactness",
            "environment": machine,
            "options": {"mode": "quick" if options.quick else "full", "rounds": 1, "seed": options.seed},
            "angles": drawn,
            "false_alarm": verdicts.FALSE_ALARM,
            "reported": len(reported),
            "verdicts": [{"law": each.name, **verdict._asdict()} for each, verdict in rows],
            "laws": {each.name: one.shown for each, one in examined.items()},
        }
    )
    lines = [("distribution", "tests", "least likely", "found", "p at most")]
    for name, _, tests, least in by_distribution(result):
        lines.append((name, tests, least["test"], least["found"], f"{least['p']:.2g}"))
    print(f"\n{table(lines)}\n")
    for each, verdict in rows:
        if verdict in reported:
            print(f"REPORTED: {each.name}, {verdict.test}: {verdict.found} (p < {verdict.p:.1e})")
    print(sentence(result))
    finish(start, options.json, result)
    return 1 if reported else 0


def damaged(options):
    """Test damaged samplers; return 0 if each that could be tested was reported, and 1 otherwise."""
    import jax

    missed = []
    for name in DAMAGES if options.damage == "all" else [options.damage]:
        damage = DAMAGES[name]
        distribution = plan.Distribution(damage.concentration)
        blocks = plan.shares(options.angles or plan.QUICK, [distribution])[distribution]
        draw = jax.jit(damage.draw, static_argnums=3)
        try:
            found = examine(distribution, draw, jax.random.key(options.seed), blocks, State(None, {}))
        except ImportError as error:
            print(f"{name}: {damage.about}: not tested, {error}")
            continue
        reported = "; ".join(each.test for each in verdicts.alarms(found.verdicts))
        print(f"{name}: {damage.about}: {reported or 'NOT REPORTED'}", flush=True)
        missed += [] if reported else [name]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
