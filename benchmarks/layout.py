"""The parts of a result of `performance_benchmark` as text."""

from benchmarks import accuracy, goals
from benchmarks.cases import TASKS
from benchmarks.peers import OURS
from benchmarks.text import NOISE, table, time_text, wide_text

__all__ = ["accuracy_table", "case_table", "error_tables", "missing_text", "stage_table", "verdict_table"]


def case_table(entry, labels):
    """Lay out one case as text."""
    task = TASKS[entry["task"]]
    lines = [("", task.unit, "quartiles", "one call", "first call, once", task.noun, "ours is faster by")]
    notes = []
    wide = {name for name, result in entry["results"].items() if result["wide"]}
    others = {}
    for name, result in entry["results"].items():
        low, high = result["rate_quartiles"]
        if result["dtype"] not in (entry["dtype"], None):
            others.setdefault(result["dtype"], []).append(labels[name])
        lines.append(
            (
                labels[name] + ("" if result["device"] == "cpu" else f" [{result['device']}]"),
                NOISE if name in wide else f"{result['rate'] / task.scale:.4g}",
                f"{low / task.scale:.4g} to {high / task.scale:.4g}",
                NOISE if name in wide else time_text(result["count"] / result["rate"]),
                time_text(result["first_call_seconds"]),
                f"{result['count']:,}",
                ratio_text(name, result, bool(wide & {OURS, name})),
            )
        )
        if name in wide:
            notes.append(wide_text(labels[name], result["spread"]))
    notes += [f"  result in {dtype}: {', '.join(names)}" for dtype, names in others.items()]
    return "\n".join([table(lines), *notes])


def ratio_text(name, result, wide):
    """Lay out how many times as fast we are; nothing where that is noise."""
    if name == OURS:
        return ""
    if "ratio" not in result:
        return "-"
    return NOISE if wide else f"{result['ratio']:.2f}"


def stage_table(entry, labels):
    """Lay out the stages of one case as text."""
    lines = [("of one call", "until it returns", "until it is done", "until the host has it")]
    for name, found in entry["stages"].items():
        lines.append(
            (labels[name], *(NOISE if found["wide"] else time_text(seconds) for seconds in found["seconds"].values()))
        )
    return table(lines)


def missing_text(missing, labels):
    """Lay out who is left out, in a line for each reason."""
    names = {}
    for name, reason in missing.items():
        names.setdefault(reason, []).append(labels[name])
    return "\n".join(f"  left out: {', '.join(who)} ({reason})" for reason, who in names.items())


def verdict_table(found, labels):
    """Lay out the verdicts on the goals as text, with a count at the end."""
    lines = [("case", "against", "goal", "found", "")]
    for verdict in found:
        ratio = "-" if verdict.ratio is None else NOISE if verdict.noisy else f"{verdict.ratio:.2f}"
        lines.append((verdict.case, labels[verdict.peer], f"{verdict.at_least:g}", ratio, verdict.state))
    states = [verdict.state for verdict in found]
    counts = ", ".join(f"{states.count(state)} {state}" for state in goals.STATES if state in states)
    return table(lines) + f"\n  {len(states)} goals: {counts}"


def accuracy_table(rows, labels):
    """Lay out the counts of different values as text: a line a peer, a column a concentration."""
    columns = list(dict.fromkeys(row["concentration"] for row in rows))
    lines = [("", *(f"k={k:g}" for k in columns))]
    for name in dict.fromkeys(row["peer"] for row in rows):
        counts = {row["concentration"]: row["distinct"] for row in rows if row["peer"] == name}
        lines.append((labels[name], *(f"{counts[k]:,}" if k in counts else "-" for k in columns)))
    return table(lines)


def error_tables(rows, labels):
    """Lay out the largest errors as text: for each way to measure them as `accuracy_table` does."""
    texts = []
    for error in accuracy.ERRORS:
        chosen = [row for row in rows if (row["task"], row["measure"]) == (error.task, error.measure)]
        if not chosen:
            continue
        columns = list(dict.fromkeys(row["concentration"] for row in chosen))
        lines = [("", *(f"k={k:g}" for k in columns))]
        for name in dict.fromkeys(row["peer"] for row in chosen):
            found = {row["concentration"]: row["largest"] for row in chosen if row["peer"] == name}
            cells = (
                "-" if k not in found else "not finite" if found[k] is None else f"{found[k]:.1e}" for k in columns
            )
            lines.append((labels[name], *cells))
        texts.append(f"  {error.label}\n{table(lines)}")
    return "\n".join(texts)
