"""Compare two results of `performance_benchmark`, and find the cases that became slower or faster.

The comparison uses the ratios of our rate to the rates of peers in the same run, since a slower machine slows all of
them. It uses our rate itself only if no ratio can be judged and the machine is the same. A noisy timing in either run
gives no verdict.
"""

import argparse
import math
from typing import NamedTuple

from benchmarks.cases import Case
from benchmarks.peers import LABELS, OURS
from benchmarks.quiet import BUSY
from benchmarks.text import table
from benchmarks.timing import noise_of

__all__ = ["TOLERANCE", "Change", "Comparison", "compare", "share", "text"]

# Largest tolerated loss, relative to the old ratio. Runs on one machine differ by 10%, whereas a lost fusion or a
# second pass over memory costs 30% or more.
TOLERANCE = 0.3

SLOWER, FASTER = "SLOWER", "faster"
SAME = "within noise or tolerance"
TOO_NOISY = "too noisy"
STATES = (SLOWER, FASTER, SAME, TOO_NOISY, BUSY)

RATE = "rate"
# Cases are comparable if the fields in `WORK` are equal, and machines are the same if those in `MACHINE` are. Different
# `SETTINGS` are only listed.
WORK = ("count", "concentration", "task", "size", "dtype", "key_impl")
MACHINE = ("platform", "device", "device_count", "cpu", "cores")
SETTINGS = ("system", "python", "x64", "variables")


class Change(NamedTuple):
    """One number of a case in both runs: the ratio to `peer`, or our rate if `peer` is `RATE`.

    `noise` is the relative uncertainty of the change, computed from the spreads of all its timings.
    """

    case: str
    peer: str
    old: float
    new: float
    noise: float
    state: str


class Comparison(NamedTuple):
    """The result of `compare`."""

    changes: list[Change]
    differences: list[str]
    """Differences in machines, settings and versions."""
    unmatched: list[tuple[str, str]]
    """Cases that are not compared, or only in part, each with the reason."""
    tolerance: float

    @property
    def judged(self):
        """Number of changes that have a verdict."""
        return sum(change.state not in (TOO_NOISY, BUSY) for change in self.changes)

    @property
    def regressions(self):
        """Losses that exceed the noise and the tolerance."""
        return [change for change in self.changes if change.state == SLOWER]


def share(string):
    """Parse a number above 0 and below 1."""
    value = float(string)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and below 1, not {string}")
    return value


def judge(factor, noise, tolerance):
    """Return the state of a change by `factor`, given steady timings."""
    # On a log scale, a loss counts as much as the gain that reverses it: 0.7 as much as 1 / 0.7.
    if abs(math.log(factor)) <= max(math.log1p(noise), -math.log1p(-tolerance)):
        return SAME
    return FASTER if factor > 1 else SLOWER


def change_of(case, peer, numbers, timings, tolerance, busy):
    """Return the `Change` between two `numbers`, old and new, which were computed from `timings`."""
    noise = noise_of(result["spread"] for result in timings)
    noisy = any(result["wide"] for result in timings)
    state = BUSY if busy else TOO_NOISY if noisy else judge(numbers[1] / numbers[0], noise, tolerance)
    return Change(case, peer, *numbers, noise, state)


def differing(old, new, names):
    """Return a line for each field in `names` that differs between `old` and `new`."""
    pairs = ((name, old.get(name), new.get(name)) for name in names)
    return [f"{name}: {before} before, {after} now" for name, before, after in pairs if before != after]


def work_of(case):
    """Return the fields that define the work of a case, with defaults for those that older files lack."""
    return {name: case.get(name, Case._field_defaults.get(name)) for name in WORK}


def compare_case(old, new, tolerance, same_machine, busy):
    """Return the changes of one case, and the reasons why parts of it are not compared."""
    name = new["name"]
    if differences := differing(work_of(old), work_of(new), WORK):
        return [], [(name, line) for line in differences]
    before, after = old["results"], new["results"]
    changes, unmatched = [], []
    for peer in dict.fromkeys((*before, *after)):
        if peer not in before or peer not in after:
            where, other = ("old", new) if peer in before else ("new", old)
            reason = other.get("missing", {}).get(peer)
            why = f" ({reason})" if reason else ""
            unmatched.append((name, f"{LABELS.get(peer, peer)} is in the {where} result only{why}"))
        elif before[peer]["count"] != after[peer]["count"]:
            counts = f"{before[peer]['count']:,} before, {after[peer]['count']:,} now"
            unmatched.append((name, f"{LABELS.get(peer, peer)}, elements per call: {counts}"))
        elif peer != OURS and "ratio" in before[peer] and "ratio" in after[peer]:
            timings = (before[OURS], before[peer], after[OURS], after[peer])
            ratios = before[peer]["ratio"], after[peer]["ratio"]
            changes.append(change_of(name, peer, ratios, timings, tolerance, busy))
    judged = any(change.state != TOO_NOISY for change in changes)
    if not judged and same_machine and OURS in before and OURS in after:
        timings = before[OURS], after[OURS]
        rates = tuple(result["rate"] for result in timings)
        changes.append(change_of(name, RATE, rates, timings, tolerance, busy))
    return changes, unmatched


def compare(old, new, tolerance=TOLERANCE):
    """Compare two results of `performance_benchmark`.

    Parameters
    ----------
    old, new : dict
        Results, as returned by `files.read_result`.
    tolerance : float
        Largest loss, relative to the old ratio, that does not count as slower.

    Returns
    -------
    Comparison
        The changes, in the order of the new result.
    """
    machines = differing(old["environment"], new["environment"], MACHINE)
    settings = differing(old["environment"], new["environment"], SETTINGS)
    versions = [result["environment"]["versions"] for result in (old, new)]
    differences = machines + settings + differing(*versions, sorted({*versions[0], *versions[1]}))
    busy = False
    for which, result in (("old", old), ("new", new)):
        state = result.get("machine_state", {"quiet": True})  # older results have no such entry
        if not state["quiet"]:
            busy = True
            differences.append(f"the machine of the {which} run was busy: {state['reason']}")
    cases = {case["name"]: case for case in old["cases"]}
    changes, unmatched = [], []
    for case in new["cases"]:
        if case["name"] not in cases:
            unmatched.append((case["name"], "in the new result only"))
            continue
        case_changes, reasons = compare_case(cases.pop(case["name"]), case, tolerance, not machines, busy)
        changes += case_changes
        unmatched += reasons
    unmatched += [(name, "in the old result only") for name in cases]
    return Comparison(changes, differences, unmatched, tolerance)


def text(comparison):
    """Return a comparison as text, with regressions first."""
    lines = ["Compared with the old result: our rate as a multiple of the peer's"]
    lines += [f"  {line}" for line in comparison.differences]
    if comparison.changes:
        rows = [("case", "against", "old", "new", "change", "noise", "")]
        for change in sorted(comparison.changes, key=lambda change: STATES.index(change.state)):
            against, form = LABELS.get(change.peer, change.peer), "{:.2f}"
            if change.peer == RATE:
                against, form = "our rate, per s", "{:.4g}"
            numbers = form.format(change.old), form.format(change.new)
            percent = f"{change.new / change.old - 1:+.0%}"
            rows.append((change.case, against, *numbers, percent, f"{change.noise:.0%}", change.state))
        lines.append(table(rows))
    reasons = {}
    for case, reason in comparison.unmatched:
        reasons.setdefault(reason, []).append(case)
    lines += [f"  not compared: {', '.join(cases)}: {reason}" for reason, cases in reasons.items()]
    slower = dict.fromkeys(change.case for change in comparison.regressions)
    if slower:
        lines.append(f"  SLOWER by more than {comparison.tolerance:.0%}: {', '.join(slower)}")
    elif comparison.judged:
        lines.append(f"  {comparison.judged} numbers judged, none slower by more than {comparison.tolerance:.0%}")
    else:
        lines.append("  No number could be judged: the runs are too noisy or have no case in common.")
    return "\n".join(lines)
