"""Measure cases within a time limit, and keep finished cases so that an interrupted run can continue."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import environment, results, timing
from benchmarks.competitors import Unavailable, precision
from benchmarks.results import LESS, OURS, Results, Row
from benchmarks.text import atomic_file, cells, table

__all__ = ["Case", "measure", "run"]

# Seconds. A peer with longer calls gets fewer elements.
LONG_CALL = 0.25
# Seconds of the rounds of a case, at most.
LONGEST = 60.0
# The lines of the head that must be equal for a run to continue.
IDENTITY = ("tree", "platform", "device", "processor", "versions", "variables", "minutes")


class Case(NamedTuple):
    """`count` elements of some work in every call, with the function ``make(count)`` of each peer that can do it.

    A function returns a `Competitor`, or raises `Unavailable` or ImportError. The package comes first. `unit` is what
    an element is called, or a unit of which less is better. On a GPU, `count` is multiplied by `gpu`.
    """

    name: str
    count: int
    peers: dict[str, Callable[[int], timing.Competitor]]
    unit: str = "draws"
    dtype: str = "float32"
    gpu: int = 1


def prepared(make, count):
    """Return a competitor that has been called, with as many elements as a call of `LONG_CALL` seconds can have."""
    while True:
        competitor = make(count)
        count = competitor.count or count
        first = timing.first_call(competitor)
        if competitor.measures or first <= LONG_CALL or count == 1:
            return competitor._replace(count=count)
        once = timing.timed(competitor, [competitor.fresh(1)])
        if once <= 2 * LONG_CALL:
            return competitor._replace(count=count)
        count = 2 ** max(0, math.floor(math.log2(count * LONG_CALL / once)))


def reason(error):
    """Return in a line why a peer cannot run."""
    if isinstance(error, ModuleNotFoundError):
        return f"not installed: {error.name}"
    if isinstance(error, Unavailable):
        return str(error)
    return f"fails: {type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"


def measure(group, case, seconds=LONGEST):
    """Return the rows of a case, whose rounds end after so many `seconds`."""
    started, notes = {}, {}
    with precision(case.dtype):
        for peer, make in case.peers.items():
            try:
                started[peer] = prepared(make, case.count)
            except Exception as error:  # other libraries may fail in any way on this machine
                if peer == OURS and not isinstance(error, Unavailable):
                    raise
                notes[peer] = reason(error)
        found = timing.rounds(started, seconds=seconds) if OURS in started else {}
    rows = []
    for peer in case.peers:
        row = Row(group, case.name, peer, case.count, case.unit, note=notes.get(peer) or notes.get(OURS, ""))
        if peer in found:
            times = found[peer]
            best, (fast, slow) = times.typical, times.span
            value, low, high = (best, fast, slow) if case.unit in LESS else (1 / best, 1 / slow, 1 / fast)
            row = row._replace(count=started[peer].count, value=value, low=low, high=high, note=started[peer].note)
            row = row.compared(times.ratio or (1.0, 1.0, 1.0))._replace(rounds=len(times.seconds))
        rows.append(row)
    return rows


def continued(partial, head):
    """Return the finished rows of an interrupted run of the same code on the same machine, by case."""
    if not partial.exists():
        return {}
    try:
        before = results.of(partial)
    except ValueError as error:
        print(f"  starting again: {error}")
        return {}
    if different := [name for name in IDENTITY if before.head.get(name) != head[name]]:
        print(f"  starting again: {partial} has another {', '.join(different)}")
        return {}
    found = {}
    for row in before.rows:
        found.setdefault((row.group, row.case), []).append(row)
    return found


def run(groups, minutes, out=None):
    """Measure all cases of `groups`.

    Parameters
    ----------
    groups : dict of str to list of Case
    minutes : float
        Time to spend; every case gets an equal share of what is left, and at most `LONGEST` seconds.
    out : Path, optional
        File for the results. Finished cases are kept next to it, and a later run continues after them.

    Returns
    -------
    Results
    """
    head = {"date": time.strftime("%Y-%m-%d"), **environment.describe(), "minutes": f"{minutes:g}"}
    print(environment.text(head))
    partial = out and out.with_name(out.name + ".partial")
    kept = continued(partial, head) if out else {}
    found, end = Results(head, []), time.monotonic() + 60 * minutes
    todo = [(group, case) for group, cases in groups.items() for case in cases]
    for number, (group, case) in enumerate(todo):
        if head["platform"] == "gpu":
            case = case._replace(count=case.count * case.gpu)
        rows = kept.pop((group, case.name), [])
        if [(row.peer, row.unit) for row in rows] != [(peer, case.unit) for peer in case.peers]:
            rows = measure(group, case, min(LONGEST, (end - time.monotonic()) / (len(todo) - number)))
        found.rows.extend(rows)
        print(f"\n{group}, {case.name}\n{shown(rows)}", flush=True)
        if partial:
            with atomic_file(partial, encoding="utf-8") as file:
                rest = [row for rows in kept.values() for row in rows]
                file.write(Results(head, found.rows + rest).text())
    wide = {f"{row.group}, {row.case}": None for row in found.rows if row.ratio is not None and not narrow(row)}
    print(f"\nRounds ended before all intervals were within {timing.WIDTH:.0%}: {'; '.join(wide) or 'none'}")
    if out:
        partial.replace(out)
        print(f"written to {out}")
    return found


def narrow(row):
    """Return whether the interval of a ratio is narrow."""
    return timing.Interval(row.ratio, row.ratio_low, row.ratio_high).narrow


def shown(rows):
    """Return the rows of a case as a table, and below it why others are missing."""
    measured = [row for row in rows if row.value is not None]
    lines = [
        {
            "line": row.peer,
            "value": results.value_text(row),
            "count": row.count,
            "ours": None if row.peer == OURS else (row.ratio, row.ratio_low, row.ratio_high),
            "rounds": row.rounds,
            "note": row.note or None,
        }
        for row in measured
    ]
    found = [table(cells(lines, ("line", "value", "count", "ours", "rounds", "note")))] if lines else []
    return "\n".join([*found, *(f"  {row.peer}: {row.note}" for row in rows if row.value is None)])
