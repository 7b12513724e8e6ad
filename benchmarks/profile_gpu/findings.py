"""Derive the findings of a report: facts about programs and angles, which a busy machine does not change.

No finding is based on times or rates. The tables show these with their spread, and
``python -m benchmarks.performance_benchmark`` compares them with those of other libraries.
"""

from typing import NamedTuple

from jax_von_mises.streams.disk import readable

__all__ = ["Finding", "findings"]


class Finding(NamedTuple):
    """A finding; `good` is false if it calls for action."""

    good: bool
    text: str


def findings(result):
    """Return the findings from the sections of a result."""
    rules = {"accuracy": accuracy, "compile": compiled, "memory": memory}
    found = []
    for name, rule in rules.items():
        data = result["sections"].get(name)
        if data is not None and "error" not in data:
            found += rule(data)
    return found


def accuracy(data):
    """Compare the errors of the angles with the guaranteed accuracy."""
    worst = max(data["rows"], key=lambda row: row["worst"])
    where = f"{worst['worst']:.0%} of the guaranteed error ({worst['line']})"
    if worst["worst"] <= 1:
        yield Finding(True, f"The angles meet the guaranteed accuracy, with at most {where}.")
    else:
        yield Finding(False, f"Angles miss the guaranteed accuracy, with {where}. Report this defect with this page.")


def compiled(data):
    """List the arguments for which JAX needlessly compiles again."""
    again = [step for step in ("same call", "another key", "another concentration") if data["compiled"][step]]
    if not data["compiled"]["first call"]:
        yield Finding(
            False, "JAX's log names no compiled program. Its wording has changed, so recompilations are unknown."
        )
    elif again:
        yield Finding(False, f"JAX compiles again for: {', '.join(again)}. Look for a changing dtype or Python number.")
    else:
        yield Finding(True, "JAX does not compile again for another key or another concentration.")


def memory(data):
    """State how much memory a large draw needs in addition to its result, according to the compiled program."""
    largest = max(row["count"] for row in data["rows"])
    rows = [row for row in data["rows"] if row["count"] == largest]
    needs = " and ".join(f"{readable(row['temporary'])} ({row['line']})" for row in rows)
    text = f"In addition to its result of {readable(rows[0]['result'])}, a draw of {largest:,} angles needs {needs}."
    yield Finding(True, text)
