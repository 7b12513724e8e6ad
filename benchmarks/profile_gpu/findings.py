"""The few findings of a report: facts about programs and angles, and one comparison where the machine was quiet.

Facts hold on any machine, however busy. A rate is compared only where `benchmarks.quiet` found the machine quiet and
every figure involved is steady, and only with a margin that turns of a few seconds do not move.
"""

from typing import NamedTuple

from benchmarks.profile_gpu.calls import NORMAL
from jax_von_mises.streams.checkpoint import readable

__all__ = ["Finding", "findings"]

MARGIN = 1.25


class Finding(NamedTuple):
    """What was found; `good` is false where there is something to do."""

    good: bool
    text: str


def findings(result):
    """Return the findings of a result, from the sections that it has."""
    rules = {"accuracy": accuracy, "compile": compiled, "memory": memory, "sizes": speed}
    found = []
    for name, rule in rules.items():
        data = result["sections"].get(name)
        if data is not None and "error" not in data:
            found += rule(data, result["machine_state"]["quiet"])
    return found


def accuracy(data, _quiet):
    """Compare the errors of the angles with what is promised."""
    worst = max(data["rows"], key=lambda row: row["worst"])
    where = f"{worst['worst']:.0%} of the promised error ({worst['line']})"
    if worst["worst"] <= 1:
        yield Finding(True, f"The angles are as accurate as promised: at most {where}.")
    else:
        yield Finding(False, f"Angles miss the promised accuracy: {where}. Report this as a defect, with this page.")


def compiled(data, _quiet):
    """Name the arguments for which JAX compiles again without need."""
    again = [step for step in ("same call", "another key", "another concentration") if data["compiled"][step]]
    if not data["compiled"]["first call"]:
        yield Finding(
            False, "JAX's log names no compiled program: its wording has changed, so recompilation is unknown."
        )
    elif again:
        yield Finding(False, f"JAX compiles again for: {', '.join(again)}. Look for a changing dtype or Python number.")
    else:
        yield Finding(True, "Another key and another concentration compile nothing; another size compiles one program.")


def memory(data, _quiet):
    """State how much memory a large draw needs next to its result, by the account of the compiled program."""
    largest = max(row["count"] for row in data["rows"])
    rows = [row for row in data["rows"] if row["count"] == largest]
    needs = ", ".join(f"{readable(row['temporary'])} ({row['line']})" for row in rows)
    text = f"Next to its result of {readable(rows[0]['result'])}, a draw of {largest:,} angles needs {needs}."
    yield Finding(True, text)


def speed(data, quiet):
    """Compare the table route with `jax.random.normal` at the largest size."""
    largest = max(row["count"] for row in data["rows"])
    rows = {row["line"]: row for row in data["rows"] if row["count"] == largest and row.get("steady")}
    if not quiet or not {NORMAL, "table route"} <= set(rows):
        return
    ratio = rows["table route"]["rate"] / rows[NORMAL]["rate"]
    if ratio > MARGIN:
        yield Finding(True, f"One concentration: {largest:,} angles are drawn faster than {NORMAL} draws as many.")
    elif ratio < 1 / MARGIN:
        yield Finding(
            False, f"One concentration: {largest:,} angles are drawn more slowly than {NORMAL} draws as many."
        )
