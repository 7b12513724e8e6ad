"""Two results beside each other: what became slower, what faster, and what cannot be told.

Compared are our ratios to the peers that were timed in the same run: a slower machine slows both. Our rate itself says
something only where device and CPU are the same, and is judged only where no peer can be: the same machine can be busy
with other things. What is noise in either run decides nothing.
"""

import argparse
import math
from typing import NamedTuple

from benchmarks.cases import Case
from benchmarks.peers import OURS, PEERS
from benchmarks.text import table

__all__ = ["TOLERANCE", "Change", "Comparison", "compare", "share", "text"]

# Of a ratio. Runs on one machine differ by a tenth; what is meant to be found is a lost fusion or a second pass over
# memory, which cost a third or more.
TOLERANCE = 0.3

# Of a number: nothing that is timed here can be told more exactly, however well its rounds agree.
LEAST_NOISE = 0.01

SLOWER, FASTER = "SLOWER", "faster"
SLIGHTLY_SLOWER = "slower, within the tolerance"
SLIGHTLY_FASTER = "faster, within the tolerance"
SAME = "the same within the noise"
TOO_NOISY = "too noisy"
TOLD = "not judged"
STATES = (SLOWER, FASTER, SLIGHTLY_SLOWER, SLIGHTLY_FASTER, SAME, TOO_NOISY, TOLD)

RATE = "rate"
# Load of the other processes, as a share of the cores, from which on they are in the way.
BUSY = 0.5
# What must agree for two cases to be one.
WORK = ("count", "concentration", "task", "size", "dtype", "key_impl")
MACHINE = ("platform", "device", "device_count", "cpu", "cores")
SETTINGS = ("system", "python", "x64", "variables")


class Change(NamedTuple):
    """One number of a case in both runs: the ratio to `peer`, or our rate where that is `RATE`.

    `noise` is the share by which the change may be wrong, by the spread of all timings that it is made of.
    """

    case: str
    peer: str
    old: float
    new: float
    noise: float
    state: str

    @property
    def factor(self):
        """How many times as fast we are, by this number."""
        return self.new / self.old


class Comparison(NamedTuple):
    """What `compare` found."""

    changes: list[Change]
    differences: list[str]
    """In what machines, settings and versions differ."""
    unmatched: list[tuple[str, str]]
    """Cases and what in them is not compared: it is in one of the results only, or was asked for otherwise."""
    tolerance: float

    @property
    def judged(self):
        """How many numbers the verdict rests on."""
        return sum(change.state not in (TOLD, TOO_NOISY) for change in self.changes)

    @property
    def regressions(self):
        """What became slower, beyond noise and tolerance."""
        return [change for change in self.changes if change.state == SLOWER]


def share(string):
    """Read a share above 0 and below 1."""
    value = float(string)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{string} is not above 0 and below 1")
    return value


def noise_of(results):
    """The share by which a product of their rates may be wrong.

    The spread of one is the middle half of its rounds; independent errors add as squares.
    """
    return max(LEAST_NOISE, math.sqrt(sum(result["spread"] ** 2 for result in results)))


def judge(factor, noise, tolerance):
    """The state of a change whose timings can be believed."""
    # A loss and the gain that makes up for it count alike: 0.7 and 1 / 0.7.
    size = -math.log(factor)
    if abs(size) <= math.log1p(noise):
        return SAME
    beyond = abs(size) > -math.log1p(-tolerance)
    if size > 0:
        return SLOWER if beyond else SLIGHTLY_SLOWER
    return FASTER if beyond else SLIGHTLY_FASTER


def differing(old, new, names, prefix=""):
    """Lines on the values that differ."""
    pairs = ((name, old.get(name), new.get(name)) for name in names)
    return [f"{prefix}{name}: {before} and now {after}" for name, before, after in pairs if before != after]


def busy(which, environment):
    """A line on a machine that had other things to do when the run began."""
    load, cores = environment.get("load_average"), environment.get("cores")
    if load is not None and cores and load > BUSY * cores:
        yield (
            f"the machine of the {which} run was busy (load average {load:.1f} on {cores} cores): we use all "
            "cores, and lose more by that than peers that use one"
        )


def work_of(case):
    """What a case asks for, filled up with what older files leave out."""
    return {name: case.get(name, Case._field_defaults.get(name)) for name in WORK}


def rate_change(name, old, new, judged, tolerance):
    """The change of our own rate."""
    noise = noise_of((old, new))
    state = TOLD if judged else judge(new["rate"] / old["rate"], noise, tolerance)
    state = TOO_NOISY if old["wide"] or new["wide"] else state
    return Change(name, RATE, old["rate"], new["rate"], noise, state)


def compare_case(old, new, tolerance, same_machine):
    """The changes of one case, and what in it has no counterpart."""
    name = new["name"]
    if found := differing(work_of(old), work_of(new), WORK):
        return [], [(name, line) for line in found]
    before, after = old["results"], new["results"]
    changes, unmatched = [], []
    for peer in dict.fromkeys((*before, *after)):
        if peer not in before or peer not in after:
            where, other = ("old", new) if peer in before else ("new", old)
            reason = other.get("missing", {}).get(peer)
            why = f" ({reason})" if reason else ""
            unmatched.append((name, f"{label(peer)} is in the {where} result only{why}"))
        elif before[peer]["count"] != after[peer]["count"]:
            counts = f"{before[peer]['count']:,} and now {after[peer]['count']:,}"
            unmatched.append((name, f"{label(peer)} did {counts}"))
        elif peer != OURS and "ratio" in before[peer] and "ratio" in after[peer]:
            timings = (before[OURS], before[peer], after[OURS], after[peer])
            ratios = before[peer]["ratio"], after[peer]["ratio"]
            noise = noise_of(timings)
            noisy = any(result["wide"] for result in timings)
            state = TOO_NOISY if noisy else judge(ratios[1] / ratios[0], noise, tolerance)
            changes.append(Change(name, peer, *ratios, noise, state))
    if same_machine and OURS in before and OURS in after:
        judged = any(change.state != TOO_NOISY for change in changes)
        changes.append(rate_change(name, before[OURS], after[OURS], judged, tolerance))
    return changes, unmatched


def compare(old, new, tolerance=TOLERANCE):
    """Compare two results of `performance_benchmark`.

    Parameters
    ----------
    old, new : dict
        As `files.read_result` gives them.
    tolerance : float
        Share that may be lost before it counts.

    Returns
    -------
    Comparison
        In the order of the new result.
    """
    machines = differing(old["environment"], new["environment"], MACHINE)
    settings = differing(old["environment"], new["environment"], SETTINGS)
    versions = [result["environment"]["versions"] for result in (old, new)]
    names = sorted({*versions[0], *versions[1]})
    differences = machines + settings + differing(*versions, names)
    differences += [*busy("old", old["environment"]), *busy("new", new["environment"])]
    cases = {case["name"]: case for case in old["cases"]}
    changes, unmatched = [], []
    for case in new["cases"]:
        if case["name"] not in cases:
            unmatched.append((case["name"], "in the new result only"))
            continue
        found, alone = compare_case(cases.pop(case["name"]), case, tolerance, not machines)
        changes += found
        unmatched += alone
    unmatched += [(name, "in the old result only") for name in cases]
    return Comparison(changes, differences, unmatched, tolerance)


def label(peer):
    """The peer's name for a reader."""
    return {found.name: found.label for found in PEERS}.get(peer, peer)


def number(change, value):
    """A rate in millions, a ratio as it is."""
    return f"{value / 1e6:.4g} M/s" if change.peer == RATE else f"{value:.2f}"


def text(comparison):
    """Lay out a comparison, what is slower first."""
    lines = ["Compared with the old result: our rate as a multiple of the peer's, and our rate"]
    if comparison.differences:
        lines += ["  The runs differ:", *(f"    {line}" for line in comparison.differences)]
    if not any(change.peer == RATE for change in comparison.changes):
        lines.append("  Only ratios are compared: the machines are not the same, or we were not timed in both.")
    if comparison.changes:
        found = [("case", "against", "old", "new", "change", "noise", "")]
        for change in sorted(comparison.changes, key=lambda change: STATES.index(change.state)):
            against = "our rate" if change.peer == RATE else label(change.peer)
            numbers = number(change, change.old), number(change, change.new)
            found.append(
                (change.case, against, *numbers, f"{change.factor - 1:+.0%}", f"{change.noise:.0%}", change.state)
            )
        lines.append(table(found))
    reasons = {}
    for case, reason in comparison.unmatched:
        reasons.setdefault(reason, []).append(case)
    if reasons:
        lines += ["  Not compared:", *(f"    {', '.join(cases)}: {reason}" for reason, cases in reasons.items())]
    states = [change.state for change in comparison.changes]
    counts = "; ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    lines.append(f"  {len(states)} numbers compared{': ' if counts else ''}{counts}")
    slower = dict.fromkeys(change.case for change in comparison.regressions)
    if slower:
        lines.append(f"  SLOWER by more than {comparison.tolerance:.0%}: {', '.join(slower)}")
    elif comparison.judged:
        lines.append(f"  Of {comparison.judged} judged nothing is slower by more than {comparison.tolerance:.0%}.")
    elif states:
        lines.append("  Nothing could be judged: run it again on a quiet machine.")
    else:
        lines.append("  The results have nothing in common that could be compared.")
    return "\n".join(lines)
