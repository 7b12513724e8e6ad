"""Speed of the samplers and the functions of the law side by side, in one process.

``python -m benchmarks.performance_benchmark --quick`` takes about five minutes on two cores; without ``--quick`` more
rounds, and all draws for every peer, take about half an hour and say more. Prints a table for each case, the accuracy
and a verdict on the goals; ``--json FILE`` keeps all of it for ``python -m benchmarks.plots FILE``.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import accuracy, environment, goals, timing
from benchmarks.cases import CASES, TASKS, LogUniform, on_gpu
from benchmarks.peers import OURS, PEERS, Unavailable

__all__ = ["main", "write_json"]

FORMAT = 2  # of the result file; grows when a reader of old files would misread a new one
ROUNDS = {"quick": 7, "full": 21}


def prepare(peer, case, capped):
    """Make `peer` ready; returns the number of elements that it gets, and what is ready."""
    limit = peer.limit(case.task, capped)
    if limit is not None and case.count > limit:
        ready = peer.prepare(case._replace(count=limit))
        if ready.device == "cpu":
            return limit, ready
    return case.count, peer.prepare(case)


def first_calls(case, peers, capped):
    """Start every peer on `case`.

    Returns
    -------
    started : dict of str to tuple
        For each peer that runs: elements, what is ready, and seconds of its first call.
    missing : dict of str to str
        For each that does not: the reason.
    """
    started, missing = {}, {}
    for peer in peers:
        try:
            count, ready = prepare(peer, case, capped)
            started[peer.name] = count, ready, timing.first_call(ready.competitor)
        except Unavailable as reason:
            missing[peer.name] = str(reason)
        except Exception as error:
            # A peer that runs out of memory or breaks on this JAX is a finding about the peer; ours must not.
            if peer.name == OURS:
                raise
            missing[peer.name] = f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return started, missing


def run_case(case, peers, rounds, capped):
    """Time `peers` on `case`; returns its entry of the result file."""
    started, missing = first_calls(case, peers, capped)
    seconds = timing.interleave({name: ready.competitor for name, (_, ready, _) in started.items()}, rounds)
    results = {}
    for name, (count, ready, first) in started.items():
        measured = timing.Timing(first, tuple(seconds[name]))
        fast, slow = measured.quartiles
        results[name] = {
            "count": count,
            "device": ready.device,
            "first_call_seconds": first,
            "seconds": seconds[name],
            "rate": count / measured.median,
            "rate_quartiles": [count / slow, count / fast],
            "spread": measured.spread,
            "wide": measured.wide,
        }
    if OURS in results:
        for result in results.values():
            result["ratio"] = results[OURS]["rate"] / result["rate"]
    concentration = case.concentration
    if isinstance(concentration, LogUniform):
        concentration = concentration._asdict()
    return {**case._asdict(), "concentration": concentration, "results": results, "missing": missing}


def table(rows):
    """Align columns: the first to the left, the others to the right."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def time_text(seconds):
    """Seconds in the unit that keeps the number short."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def case_table(entry, labels):
    """Lay out one case as text."""
    task = TASKS[entry["task"]]
    rows = [("", task.unit, "quartiles", "one call", "first call", task.noun, "ours is faster by")]
    notes = []
    for name, result in entry["results"].items():
        low, high = result["rate_quartiles"]
        rows.append(
            (
                labels[name] + ("" if result["device"] == "cpu" else f" [{result['device']}]"),
                f"{result['rate'] / task.scale:.4g}",
                f"{low / task.scale:.4g} to {high / task.scale:.4g}",
                time_text(result["count"] / result["rate"]),
                time_text(result["first_call_seconds"]),
                f"{result['count']:,}",
                "" if name == OURS else f"{result['ratio']:.2f}" if "ratio" in result else "-",
            )
        )
        if result["wide"]:
            notes.append(f"  warning: {labels[name]}: the middle half of the rounds spans {result['spread']:.0%} of")
            notes.append("           the median; the machine was busy, so believe this number no further than that.")
    return "\n".join([table(rows), *notes])


def missing_text(missing, labels):
    """Lay out who is left out, in a line for each reason."""
    names = {}
    for name, reason in missing.items():
        names.setdefault(reason, []).append(labels[name])
    return "\n".join(f"  left out: {', '.join(who)} ({reason})" for reason, who in names.items())


def verdict_table(found, labels):
    """Lay out the verdicts on the goals as text, with a count at the end."""
    rows = [("case", "against", "goal", "found", "")]
    for verdict in found:
        ratio = "-" if verdict.ratio is None else f"{verdict.ratio:.2f}"
        state = verdict.state + (" (noisy)" if verdict.noisy else "")
        rows.append((verdict.case, labels[verdict.peer], f"{verdict.at_least:g}", ratio, state))
    states = [verdict.state for verdict in found]
    counts = ", ".join(f"{states.count(state)} {state}" for state in (goals.MET, goals.MISSED, goals.NOT_MEASURED))
    return table(rows) + f"\n  {len(states)} goals: {counts}"


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


def environment_text(found):
    """Lay out the environment in a few lines."""
    load = "" if found["load_average"] is None else f", load average {found['load_average']:.1f}"
    lines = [
        f"{found['device_count']} x {found['device']} ({found['platform']})",
        f"CPU {found['cpu']}, {found['cores']} cores{load}",
        f"{found['system']}, Python {found['python']}, x64 {'on' if found['x64'] else 'off'}",
        ", ".join(f"{name} {version}" for name, version in found["versions"].items()),
        *(f"{name}={value}" for name, value in found["variables"].items()),
    ]
    return "\n".join("  " + line for line in lines)


def write_json(path, result):
    """Write `result` to `path`, which holds the old file or the new one and never a part."""
    path = Path(path)
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp lets nobody else read
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def positive(text):
    """Read a count of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.performance_benchmark", description=__doc__.splitlines()[0]
    )
    made.add_argument("--quick", action="store_true", help="fewer rounds, and less work for the slow peers")
    made.add_argument("--json", metavar="FILE", type=Path, help="write all timings, the environment and the accuracy")
    names = [case.name for case in CASES]
    made.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE", help=", ".join(names))
    names = [peer.name for peer in PEERS]
    made.add_argument("--peers", nargs="+", choices=names, default=names, metavar="PEER", help=", ".join(names))
    made.add_argument("--rounds", type=positive, help="turns of each peer; {quick} quick, {full} else".format(**ROUNDS))
    return made


def main(arguments=None):
    """Run the benchmark; returns the exit code, 0 also where goals are missed."""
    given = parser().parse_args(arguments)
    if given.json is not None and not given.json.parent.is_dir():
        print(f"--json {given.json}: there is no folder {given.json.parent}", file=sys.stderr)
        return 2
    # JAX takes three quarters of a GPU at start otherwise, and the other libraries need room beside it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    mode = "quick" if given.quick else "full"
    rounds = given.rounds or ROUNDS[mode]
    peers = [peer for peer in PEERS if peer.name in given.peers]
    labels = {peer.name: peer.label for peer in PEERS}
    start = time.perf_counter()

    found = environment.describe()
    print(environment_text(found))
    print(
        f"  Median of {rounds} rounds in which all take turns (calls above {timing.LONG_CALL:g} s: in every third),\n"
        "  the first call, with compilation, apart. Where a slow peer gets less than the case asks for, the\n"
        "  last column but one says so; that is to its advantage or does not matter. NumPy and SciPy work in float64."
    )
    capped = given.quick or found["platform"] != "cpu"
    cases = [case for case in CASES if case.name in given.cases]
    if found["platform"] == "gpu":
        cases = [on_gpu(case) for case in cases]
    entries, told = [], set()
    for case in cases:
        print(f"\n{case.name}: {case.describe()}", flush=True)
        entry = run_case(case, peers, rounds, capped)
        news = {name: reason for name, reason in entry["missing"].items() if (case.task, name, reason) not in told}
        told.update((case.task, name, reason) for name, reason in news.items())
        if news:
            print(missing_text(news, labels))
        entries.append(entry)
        print(case_table(entry, labels), flush=True)

    tasks = {case.task for case in cases}
    counts, errors = [], []
    if "sample" in tasks:
        print(f"\nDifferent values of |x| in {accuracy.DRAWS:,} float32 draws", flush=True)
        counts = accuracy.measure(peers)
        print(accuracy_table(counts, labels))
    if tasks & {error.task for error in accuracy.ERRORS}:
        print("\nLargest errors, against quadrature in float64 at the same float32 arguments", flush=True)
        errors = accuracy.errors(tasks, peers)
        print(error_tables(errors, labels))

    verdicts = goals.verdicts(found["platform"], entries)
    if verdicts:
        print("\nGoals: our rate as a multiple of the peer's")
        print(verdict_table(verdicts, labels))
    elapsed = time.perf_counter() - start
    print(f"\n{elapsed:.0f} s in all")
    if given.json is not None:
        write_json(
            given.json,
            {
                "format": FORMAT,
                "environment": found,
                "options": {"mode": mode, "rounds": rounds},
                "seconds": elapsed,
                "cases": entries,
                "accuracy": counts,
                "errors": errors,
                "goals": [{**verdict._asdict(), "state": verdict.state} for verdict in verdicts],
            },
        )
        print(f"written to {given.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
