"""Measure accuracy: the number of distinct values from each sampler, and the largest errors of the functions.

A float32 sampler that takes ``arccos`` of a cosine near 1 returns few distinct angles, because float32 has few values
near 1. An accurate sampler returns nearly a million distinct values in a million draws.
"""

from typing import NamedTuple

import numpy as np

from benchmarks import reference
from benchmarks.cases import Case
from benchmarks.peers import LABELS, OURS, PEERS, Unavailable
from benchmarks.text import table

__all__ = [
    "CONCENTRATIONS",
    "DRAWS",
    "ERRORS",
    "ERROR_CONCENTRATIONS",
    "count_table",
    "error_tables",
    "errors",
    "measure",
    "summarise",
]

DRAWS = 1_000_000
CONCENTRATIONS = (1e3, 1e5, 1e7, 1e9)
ERROR_CONCENTRATIONS = (0.1, 5.0, 100.0, 1e4, 1e7)
POINTS = 10_001
PROBABILITIES = 201  # per tail; SciPy takes a millisecond per quantile
WIDTH = 10.0  # standard deviations on each side; tail probabilities reach 1e-23, which float32 can represent


class Error(NamedTuple):
    """An error measure of the function for `task`, and its label in tables."""

    task: str
    measure: str
    label: str


ERRORS = (
    Error("cdf", "absolute", "cdf, absolute"),
    Error("cdf", "tail", "cdf below 1/2, relative"),
    Error("log_prob", "scaled", "log_prob, relative to max(1, |log_prob|)"),
    Error("icdf", "scaled", "icdf, in units of 1 / sqrt(1 + concentration)"),
)


def summarise(angles):
    """Summarise draws about 0, after rounding them to float32.

    Returns
    -------
    dict
        ``distinct``, the number of distinct finite ``|x|``; ``zero``, the fraction of draws that are exactly 0;
        ``nan``, the fraction that are NaN.
    """
    sizes = np.abs(np.asarray(angles, np.float32).ravel())
    finite = sizes[np.isfinite(sizes)]
    return {
        "distinct": int(np.unique(finite).size),
        "zero": float(np.mean(sizes == 0)),
        "nan": float(np.mean(np.isnan(sizes))),
    }


def answer(peer, case, arguments=None):
    """Return the result of one call with `arguments`, by default the first input of `case`.

    Return None if a peer cannot run or fails. Failures of the package itself are raised.
    """
    try:
        ready = peer.prepare(case)
        competitor = ready.competitor
        result = competitor.draw(competitor.fresh(0) if arguments is None else ready.give(arguments))
        competitor.wait(result)
        return ready.read(result)
    except Exception as error:
        # The timings have already reported the reason.
        if peer.name == OURS and not isinstance(error, Unavailable):
            raise
        return None


def measure(peers=PEERS, draws=DRAWS, concentrations=CONCENTRATIONS):
    """Return a row for each concentration and each peer that runs here, with the fields of `summarise`."""
    rows = []
    for concentration in concentrations:
        case = Case(f"accuracy k={concentration:g}", "accuracy", draws, concentration)
        for peer in peers:
            angles = answer(peer, case)
            if angles is not None:
                counts = summarise(angles)
                rows.append({"peer": peer.name, "concentration": concentration, "draws": draws, **counts})
    return rows


def questions(task, k):
    """Return float32 arguments that reach far into both tails."""
    if task == "icdf":
        small = np.geomspace(1e-9, 0.5, PROBABILITIES)
        return np.unique(np.concatenate([small, 1 - small]).clip(max=1 - 2**-24).astype(np.float32))
    width = min(3.14, WIDTH / np.sqrt(k))
    return np.linspace(-width, width, POINTS).astype(np.float32)


def distances(task, k, arguments, values):
    """Map each measure of `task` to the errors of `values` at `arguments`."""
    arguments, values = arguments.astype(np.float64), np.asarray(values, np.float64)
    right = getattr(reference, task)(arguments, k)
    error = np.abs(values - right)
    if task == "icdf":
        return {"scaled": error * np.sqrt(1 + k)}
    if task == "log_prob":
        return {"scaled": error / np.maximum(1, np.abs(right))}
    return {"absolute": error, "tail": (error / right)[arguments < 0]}


def errors(tasks, peers=PEERS, concentrations=ERROR_CONCENTRATIONS):
    """Return the largest errors of the functions for `tasks`, with the float32 arguments taken as exact.

    Returns
    -------
    list of dict
        Rows of ``task``, ``measure``, ``peer``, ``concentration`` and ``largest``, which is None if an error is NaN or
        infinite.
    """
    rows = []
    for task in dict.fromkeys(error.task for error in ERRORS if error.task in tasks):
        for concentration in concentrations:
            k = float(np.float32(concentration))
            arguments = questions(task, k)
            # `arguments` replace the peer's timing input, so one element is enough.
            case = Case(f"{task} k={concentration:g}", task, 1, concentration, task)
            for peer in peers:
                values = answer(peer, case, arguments)
                if values is None:
                    continue
                for measure, error in distances(task, k, arguments, values).items():
                    largest = float(np.max(error))
                    row = {"task": task, "measure": measure, "peer": peer.name, "concentration": concentration}
                    rows.append({**row, "largest": largest if np.isfinite(largest) else None})
    return rows


def by_concentration(rows, cell):
    """Return a table with a row for each peer and a column for each concentration."""
    columns = list(dict.fromkeys(row["concentration"] for row in rows))
    lines = [("", *(f"k={k:g}" for k in columns))]
    for name in dict.fromkeys(row["peer"] for row in rows):
        found = {row["concentration"]: cell(row) for row in rows if row["peer"] == name}
        lines.append((LABELS[name], *(found.get(k, "-") for k in columns)))
    return table(lines)


def count_table(rows):
    """Return the numbers of distinct values as a table."""
    return by_concentration(rows, lambda row: f"{row['distinct']:,}")


def error_tables(rows):
    """Return the largest errors as text, with a table for each measure."""
    texts = []
    for error in ERRORS:
        chosen = [row for row in rows if (row["task"], row["measure"]) == (error.task, error.measure)]
        if chosen:
            cells = by_concentration(
                chosen, lambda row: "not finite" if row["largest"] is None else f"{row['largest']:.1e}"
            )
            texts.append(f"  {error.label}\n{cells}")
    return "\n".join(texts)
