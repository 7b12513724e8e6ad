"""Speed of the samplers and the functions of the law side by side, in one process.

``python -m benchmarks.performance_benchmark --quick`` takes about five minutes on two cores; without ``--quick`` more
rounds, and all draws for every peer, take about half an hour and say more. Prints a table for each case, the accuracy
and a verdict on the goals; ``--json FILE`` keeps all of it for ``python -m benchmarks.plots FILE``, ``--csv FILE`` for
other programs.

``--grid sizes dtypes keys`` and others go along one axis each. ``--stages`` tells apart how long a call takes to
return, to be done and to be on the host. ``--startup`` adds the first call of fresh processes, with a compilation
cache and without: ``python -m benchmarks.startup`` alone says more of it. ``--compare OLD.json`` names what became
slower, also without a new run: ``--from NEW.json --compare OLD.json``.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time

from benchmarks import accuracy, compare, environment, goals, rows, startup, timing
from benchmarks.cases import CASES, GRIDS, LogUniform, on_gpu
from benchmarks.files import finish, new_file, read_result, write_text
from benchmarks.layout import accuracy_table, case_table, error_tables, missing_text, stage_table, verdict_table
from benchmarks.peers import OURS, PEERS, Unavailable
from benchmarks.text import environment_text, positive

__all__ = ["FORMAT", "main", "run_case"]

FORMAT = 2  # of the result file; grows when a reader of old files would misread a new one
ROUNDS = {"quick": 7, "full": 21}

# A program that may need so many times the memory of its result is asked what it needs, where that is more than is
# free: NumPyro's holds eleven arrays of the size of its draws, PyTorch's thirty.
MOST_ARRAYS = 32
# Of the free memory; the rest is for what the libraries keep to themselves.
MEMORY_SHARE = 0.9

# Stages are told apart in fewer turns: they explain a rate, and are not compared.
STAGE_ROUNDS = 7


def precision(dtype):
    """Whatever JAX needs to work in `dtype`, as a context."""
    import jax

    return jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()


def free_memory():
    """Bytes that a result may take, None where nobody tells."""
    try:
        from jax_von_mises import runtime
    except ImportError:
        return None
    return runtime.memory_report()[0].free


def refuse_large(case, ready, free):
    """Raise `Unavailable` where a call takes more memory than there is: to go on could end the process."""
    import jax.numpy as jnp

    if free is None or MOST_ARRAYS * case.count * jnp.dtype(case.dtype).itemsize <= free:
        return
    need = ready.need()
    if need is not None and need > MEMORY_SHARE * free:
        raise Unavailable(f"needs {need / 2**30:.3g} GiB of memory, and {free / 2**30:.3g} are free")


def prepare(peer, case, capped):
    """Make `peer` ready; returns the number of elements that it gets, and what is ready."""
    limit = peer.limit(case.task, capped)
    if limit is not None and case.count > limit:
        ready = peer.prepare(case._replace(count=limit))
        if ready.device == "cpu":
            return limit, ready
    ready = peer.prepare(case)
    refuse_large(case, ready, free_memory())
    return case.count, ready


def noting(competitor, seen):
    """The same competitor, which appends the dtype of every result to `seen`: None where it is not one array."""

    def wait(result):
        dtype = getattr(result, "dtype", None)
        seen.append(None if dtype is None else str(dtype).removeprefix("torch."))
        return competitor.wait(result)

    return competitor._replace(wait=wait)


def first_calls(case, peers, capped):
    """Start every peer on `case`.

    Returns
    -------
    started : dict of str to tuple
        For each peer that runs: elements, what is ready, seconds of its first call, and the dtype of the result.
    missing : dict of str to str
        For each that does not: the reason.
    """
    started, missing = {}, {}
    for peer in peers:
        try:
            count, ready = prepare(peer, case, capped)
            dtypes = []
            first = timing.first_call(noting(ready.competitor, dtypes))
            started[peer.name] = count, ready, first, dtypes[0]
        except Unavailable as reason:
            missing[peer.name] = str(reason)
        except Exception as error:
            # A peer that runs out of memory or breaks on this JAX is a finding about the peer; ours must not.
            if peer.name == OURS:
                raise
            missing[peer.name] = f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return started, missing


def run_stages(started, rounds):
    """Tell apart the stages of a call of those that have them; returns their part of an entry of the result file."""
    competitors = {name: ready.competitor for name, (_, ready, *_) in started.items() if ready.fetch is not None}
    if not competitors:
        return {}
    fetch = next(ready.fetch for _, ready, *_ in started.values() if ready.fetch is not None)
    found = {}
    for name, turns in timing.stages(competitors, fetch, min(rounds, STAGE_ROUNDS)).items():
        each = {stage: [getattr(turn, stage) for turn in turns] for stage in timing.Stages._fields}
        total = timing.Timing(0.0, tuple(map(sum, turns)))
        parts = [timing.Timing(0.0, tuple(seconds)) for seconds in each.values()]
        found[name] = {
            "seconds": {stage: timing.Timing(0.0, tuple(seconds)).median for stage, seconds in each.items()},
            "quartiles": {stage: timing.Timing(0.0, tuple(seconds)).quartiles for stage, seconds in each.items()},
            "spread": total.spread,
            "wide": total.wide or timing.unsteady(parts, total),
        }
    return found


def run_case(case, peers, rounds, capped, staged=False):
    """Time `peers` on `case`, the stages of a call too if `staged`; returns its entry of the result file."""
    with precision(case.dtype):
        started, missing = first_calls(case, peers, capped)
        seconds = timing.interleave({name: ready.competitor for name, (_, ready, *_) in started.items()}, rounds)
        stages = run_stages(started, rounds) if staged else {}
    results = {}
    for name, (count, ready, first, dtype) in started.items():
        measured = timing.Timing(first, tuple(seconds[name]))
        fast, slow = measured.quartiles
        results[name] = {
            "count": count,
            "device": ready.device,
            "dtype": dtype,
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
    entry = {**case._asdict(), "concentration": concentration, "results": results, "missing": missing}
    return entry | {"stages": stages} if stages else entry


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.performance_benchmark", description=__doc__.splitlines()[0]
    )
    made.add_argument("--quick", action="store_true", help="fewer rounds, and less work for the slow peers")
    made.add_argument(
        "--json", metavar="FILE", type=new_file, help="write all timings, the environment and the accuracy"
    )
    made.add_argument("--csv", metavar="FILE", type=new_file, help="write a line for each case and peer")
    names = [case.name for case in (*CASES, *grid_cases(GRIDS))]
    default = ", ".join(case.name for case in CASES)
    told = f"by default {default}; also those of the grids, such as {GRIDS['sizes'][-1].name}"
    made.add_argument("--cases", nargs="+", choices=names, default=[], metavar="CASE", help=told)
    made.add_argument("--grid", nargs="+", choices=GRIDS, default=[], metavar="GRID", help=", ".join(GRIDS))
    names = [peer.name for peer in PEERS]
    made.add_argument("--peers", nargs="+", choices=names, default=names, metavar="PEER", help=", ".join(names))
    made.add_argument("--rounds", type=positive, help="turns of each peer; {quick} quick, {full} else".format(**ROUNDS))
    made.add_argument(
        "--stages", action="store_true", help="also time the stages of a call, of those that JAX compiles"
    )
    made.add_argument("--startup", action="store_true", help="also time the first call of fresh processes")
    made.add_argument("--compare", metavar="OLD.json", help="name what changed since; exit code 1 if slower")
    made.add_argument("--from", dest="measured", metavar="NEW.json", help="a result in place of a new run")
    told = f"share of a ratio that may be lost before it counts as slower; {compare.TOLERANCE:g}"
    made.add_argument("--tolerance", type=compare.share, default=compare.TOLERANCE, metavar="SHARE", help=told)
    return made


def grid_cases(names):
    """The cases of these grids."""
    return [case for name in names for case in GRIDS[name]]


def chosen(given):
    """The cases that were asked for, in the order of the table."""
    if not given.cases and not given.grid:
        return list(CASES)
    wanted = {*given.cases, *(case.name for case in grid_cases(given.grid))}
    return [case for case in (*CASES, *grid_cases(GRIDS)) if case.name in wanted]


def measure(given):
    """Time what was asked for, and print it; returns the result without how long that took."""
    # JAX takes three quarters of a GPU at start otherwise, and the other libraries need room beside it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    mode = "quick" if given.quick else "full"
    rounds = given.rounds or ROUNDS[mode]
    peers = [peer for peer in PEERS if peer.name in given.peers]
    labels = {peer.name: peer.label for peer in PEERS}

    found = environment.describe()
    print(environment_text(found))
    print(
        f"  Median of {rounds} rounds in which all take turns (calls above {timing.LONG_CALL:g} s: in every third),\n"
        "  a single first call, with compilation, apart (--startup times more of them). Where a slow peer gets less\n"
        "  than the case asks for, the last column but one says so; that is to its advantage or does not matter.\n"
        "  NumPy and SciPy work in float64. Where the rounds disagree it says noise, and no number."
    )
    capped = given.quick or found["platform"] != "cpu"
    cases = chosen(given)
    if found["platform"] == "gpu":
        cases = [on_gpu(case) for case in cases]
    entries, told = [], set()
    for case in cases:
        print(f"\n{case.name}: {case.describe()}", flush=True)
        entry = run_case(case, peers, rounds, capped, given.stages)
        news = {name: reason for name, reason in entry["missing"].items() if (case.task, name, reason) not in told}
        told.update((case.task, name, reason) for name, reason in news.items())
        if news:
            print(missing_text(news, labels))
        entries.append(entry)
        if entry["results"]:
            print(case_table(entry, labels), flush=True)
        if "stages" in entry:
            print(stage_table(entry, labels), flush=True)

    # The grids ask for speed along one axis; what comes out is told by the default cases.
    names = {case.name for case in CASES}
    tasks = {case.task for case in cases if case.name in names}
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
    result = {
        "format": FORMAT,
        "environment": found,
        "options": {"mode": mode, "rounds": rounds},
        "cases": entries,
        "accuracy": counts,
        "errors": errors,
        "goals": [{**verdict._asdict(), "state": verdict.state} for verdict in verdicts],
    }
    if given.startup:
        result["startup"] = run_startup(mode)
    return result


def run_startup(mode):
    """Time the first call of fresh processes, and print it; returns what `startup` keeps of it."""
    print("\nThe first call in a process of its own", flush=True)
    with tempfile.TemporaryDirectory(prefix="jax_von_mises-") as folder:
        found, missing = startup.measure(startup.WAYS, startup.TASKS, startup.ROUNDS[mode], folder)
    summary = startup.summarise(found)
    for name, ways in summary.items():
        print(f"\n{startup.summary_text(name, ways)}")
    if missing:
        print(f"\nMissing\n{startup.missing_text(missing)}")
    return summary


def main(arguments=None):
    """Run the benchmark.

    Returns
    -------
    int
        Exit code: 1 where `--compare` finds that we became slower, 2 where a file is no result or nothing can be
        judged; else 0, also where goals are missed.
    """
    made = parser()
    given = made.parse_args(arguments)
    if given.measured is not None and (given.compare is None and given.csv is None):
        made.error("--from says what to compare or to write as a table: it needs --compare or --csv")
    if given.measured is not None and given.json is not None:
        made.error("--json keeps what is measured, and --from measures nothing")
    if given.json is not None and given.csv is not None and given.json.resolve() == given.csv.resolve():
        made.error(f"--json and --csv both name {given.csv}: name two files")
    start = time.perf_counter()
    try:
        # Before what takes minutes.
        old = None if given.compare is None else read_result(given.compare)
        result = None if given.measured is None else read_result(given.measured)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if result is None:
        with environment.without_cache():
            result = measure(given)
        finish(start, given.json, result)
    if given.csv is not None:
        write_text(given.csv, rows.csv_text(result))
        print(f"written to {given.csv}")
    if old is None:
        return 0
    comparison = compare.compare(old, result, given.tolerance)
    print(f"\n{compare.text(comparison)}")
    if not comparison.judged:
        return 2
    return 1 if comparison.regressions else 0


if __name__ == "__main__":
    sys.exit(main())
