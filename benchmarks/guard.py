"""Whether the sampler is still far faster than what it is compared with: a verdict, in a few minutes.

``python -m benchmarks.guard`` times a few cases beside the peers that are always there, and NumPyro where it is
installed. It asks for a share of each goal, so that no machine's mood decides; a case that is noisy is repeated, and
what stays noisy is not judged. PASS and TOO NOISY end with exit code 0, FAIL with 1, and 2 where nothing can be judged.
"""

import argparse
import os
import sys
import time
from typing import NamedTuple

from benchmarks import environment, goals
from benchmarks.cases import CASES, on_gpu
from benchmarks.files import finish, new_file
from benchmarks.layout import missing_text
from benchmarks.peers import OURS, PEERS
from benchmarks.performance_benchmark import FORMAT, run_case
from benchmarks.text import NOISE, environment_text, positive, table

__all__ = ["NAMES", "SHARE", "Judged", "attempt", "main", "overall"]

# Of a goal. The goals are for a quiet machine of the kind they were set on; less than two fifths of one is not the
# machine.
SHARE = 0.4
# Of the goal for small calls: their time is the overhead of Python and of the system, which differs more.
SMALL_SHARE = 0.25
NAMES = ("k=0.1", "k=1e4", "array", "small", "cdf", "fit")
FAST_PEERS = (OURS, "normal", "numpy", "scipy", "numpyro")
ROUNDS = 7
ATTEMPTS = 3

PASS, FAIL, TOO_NOISY, NOTHING = "PASS", "FAIL", "TOO NOISY", "NOTHING TO JUDGE"
# Verdicts that another attempt may settle.
OPEN = (goals.TOO_NOISY, goals.TOO_CLOSE)
WORDS = {
    goals.MET: PASS,
    goals.MISSED: FAIL,
    **dict.fromkeys(OPEN, TOO_NOISY),
    goals.NOT_MEASURED: goals.NOT_MEASURED,
}
EXIT_CODES = {PASS: 0, FAIL: 1, TOO_NOISY: 0, NOTHING: 2}


class Judged(NamedTuple):
    """A case after as many attempts as it took: its entry of the result file, and the verdicts on it."""

    entry: dict
    verdicts: list[goals.Verdict]
    attempts: int


def bounds():
    """The goals, made easier."""
    return tuple(
        goal._replace(at_least=(SMALL_SHARE if goal.group == "small" else SHARE) * goal.at_least)
        for goal in goals.GOALS
    )


def attempt(measure, platform, asked, attempts=ATTEMPTS):
    """Measure a case until nothing in it is noisy, or nearer to its bound than the noise.

    Parameters
    ----------
    measure : callable
        Gives an entry of the result file, anew at each call.
    platform : str
        Where JAX runs.
    asked : sequence of Goal
        The bounds.
    attempts : int
        After so many the noise stays.

    Returns
    -------
    Judged
        The last entry. A verdict is that of the first attempt in which its two timings could be believed: a later one
        does not replace it, or the guard would choose.
    """
    settled, made = {}, 0
    for _ in range(attempts):
        entry = measure()
        made += 1
        for verdict in goals.verdicts(platform, [entry], asked):
            if verdict.peer not in settled or settled[verdict.peer].state in OPEN:
                settled[verdict.peer] = verdict
        if not any(verdict.state in OPEN for verdict in settled.values()):
            break
    return Judged(entry, list(settled.values()), made)


def overall(verdicts):
    """One word for all verdicts: a failure is a failure, and only what was judged throughout passes."""
    words = {WORDS[verdict.state] for verdict in verdicts} - {goals.NOT_MEASURED}
    if not words & {PASS, FAIL}:
        return NOTHING
    return next(word for word in (FAIL, TOO_NOISY, PASS) if word in words)


def verdict_text(verdicts, labels):
    """Lay out the verdicts."""
    lines = [("case", "ours against", "at least", "found", "")]
    for verdict in verdicts:
        found = "-" if verdict.ratio is None else NOISE if verdict.noisy else f"{verdict.ratio:.2f}"
        state = WORDS[verdict.state]
        lines.append((verdict.case, labels[verdict.peer], f"{verdict.at_least:g}", found, state))
    return table(lines)


def explanation(word, verdicts):
    """What the word means here."""
    states = [WORDS[verdict.state] for verdict in verdicts]
    judged = states.count(PASS) + states.count(FAIL)
    failed = ", ".join(dict.fromkeys(v.case for v in verdicts if WORDS[v.state] == FAIL))
    return {
        PASS: f"all {judged} ratios are above their bounds",
        FAIL: f"too slow in {failed}; {judged} ratios were judged, {states.count(TOO_NOISY)} were too noisy",
        TOO_NOISY: f"{judged} ratios were judged and are above their bounds, {states.count(TOO_NOISY)} were too noisy: "
        "run it again on a quiet machine",
        NOTHING: "no peer that a bound is set for was measured here"
        if TOO_NOISY not in states
        else "everything was too noisy: run it again on a quiet machine",
    }[word]


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__.splitlines()[0])
    made.add_argument("--rounds", type=positive, default=ROUNDS, help=f"turns of each peer in an attempt; {ROUNDS}")
    made.add_argument("--cases", nargs="+", choices=NAMES, default=NAMES, metavar="CASE", help=", ".join(NAMES))
    told = "write a result, which performance_benchmark --compare reads"
    made.add_argument("--json", metavar="FILE", type=new_file, help=told)
    return made


def main(arguments=None):
    """Run the guard; returns the exit code."""
    given = parser().parse_args(arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    start = time.perf_counter()
    found = environment.describe()
    platform = found["platform"]
    peers = [peer for peer in PEERS if peer.name in FAST_PEERS]
    labels = {peer.name: peer.label for peer in PEERS}
    print(environment_text(found))
    print(
        f"  Bounds are {SHARE:.0%} of the goals, {SMALL_SHARE:.0%} for small calls; a noisy case is repeated, "
        f"{ATTEMPTS} times in all at most."
    )
    asked = bounds()
    judged = []
    for case in CASES:
        if case.name not in given.cases:
            continue
        case = on_gpu(case) if platform == "gpu" else case
        print(f"\n{case.name}: {case.describe()}", flush=True)
        done = attempt(lambda case=case: run_case(case, peers, given.rounds, True), platform, asked)
        judged.append(done)
        wanted = {verdict.peer for verdict in done.verdicts}
        missing = {peer: reason for peer, reason in done.entry["missing"].items() if peer in wanted}
        if missing:
            print(missing_text(missing, labels))
        print(verdict_text(done.verdicts, labels), flush=True)
        if done.attempts > 1:
            print(f"  after {done.attempts} attempts")
    verdicts = [verdict for done in judged for verdict in done.verdicts]
    word = overall(verdicts)
    print(f"\n{word}: {explanation(word, verdicts)}")
    finish(
        start,
        given.json,
        {
            "format": FORMAT,
            "environment": found,
            "options": {"mode": "guard", "rounds": given.rounds},
            "cases": [done.entry for done in judged],
            "accuracy": [],
            "errors": [],
            "goals": [],
            "guard": {
                "verdict": word,
                "bounds": [{**verdict._asdict(), "state": WORDS[verdict.state]} for verdict in verdicts],
            },
        },
    )
    return EXIT_CODES[word]


if __name__ == "__main__":
    sys.exit(main())
