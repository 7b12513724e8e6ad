"""Speed and accuracy of the samplers and functions, compared with other libraries in the same process.

``python -m benchmarks.performance_benchmark --quick`` times the most important cases in about two minutes on two cores;
without ``--quick`` all cases take about half an hour. It prints a table for each case, the accuracy, and a verdict on
each goal; ``--json FILE`` keeps all results, for ``python -m benchmarks.plots FILE`` and for later comparisons.
``--tuned`` gives all competitors 512-bit vectors and huge pages, settings that users have, too.

``--grid sizes dtypes keys`` and other grids vary one property each. ``--compare OLD.json`` names the cases that became
slower, also without a new run: ``--from NEW.json --compare OLD.json``. ``--guard`` judges a few cases by a share of
their goals: the exit code is 0 for PASS and TOO NOISY, 1 for FAIL, and 2 if nothing can be judged.
"""

import argparse
import contextlib
import os
import sys
import time
from typing import NamedTuple

from benchmarks import accuracy, compare, environment, goals, guard, quiet, timing
from benchmarks.cases import CASES, GRIDS, LogUniform, on_gpu
from benchmarks.files import finish, new_file, read_result
from benchmarks.peers import LABELS, OURS, PEERS, Unavailable
from benchmarks.text import case_table, environment_text, missing_text, positive, progress

__all__ = ["FORMAT", "main", "prepare", "run_case"]

HUGE_PAGES = "glibc.malloc.hugetlb=1"
FORMAT = 2  # of the result file; grows when a reader of old files would misread a new one


class Mode(NamedTuple):
    """Default amount of work; `capped` gives slow peers fewer elements."""

    rounds: int
    cases: tuple[str, ...] = tuple(case.name for case in CASES)
    peers: tuple[str, ...] = tuple(peer.name for peer in PEERS)
    capped: bool = True
    distinct: tuple[float, ...] = accuracy.CONCENTRATIONS
    errors: tuple[float, ...] = accuracy.ERROR_CONCENTRATIONS


MODES = {
    "full": Mode(21, capped=False),
    "quick": Mode(
        5, ("k=1", "k=1e4", "array", "small", "cdf", "log_prob", "gradient"), distinct=(1e5,), errors=(5.0, 1e4)
    ),
    "guard": Mode(guard.ROUNDS, guard.CASES, guard.PEERS),
}


def precision(dtype):
    """Return a context in which JAX supports `dtype`."""
    import jax

    return jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()


def prepare(peer, case, capped):
    """Return the number of elements that `peer` gets, and its `Ready` function for them."""
    limit = peer.limit(case.task, capped)
    if limit is not None and case.count > limit:
        ready = peer.prepare(case._replace(count=limit))
        if ready.device == "cpu":
            return limit, ready
    return case.count, peer.prepare(case)


def noting(competitor, seen):
    """Return a copy of `competitor` that appends the dtype of every result to `seen`, None if that is not one array."""

    def wait(result):
        dtype = getattr(result, "dtype", None)
        seen.append(None if dtype is None else str(dtype).removeprefix("torch."))
        return competitor.wait(result)

    return competitor._replace(wait=wait)


def first_calls(case, peers, capped, tick):
    """Start every peer on `case`.

    Returns
    -------
    started : dict of str to tuple
        For each peer that runs: its number of elements, its `Ready` function, the seconds of its first call, and the
        dtype of the result.
    missing : dict of str to str
        For each other peer: the reason.
    """
    started, missing = {}, {}
    for peer in peers:
        try:
            tick()
            count, ready = prepare(peer, case, capped)
            dtypes = []
            first = timing.first_call(noting(ready.competitor, dtypes))
            started[peer.name] = count, ready, first, dtypes[0]
        except Unavailable as reason:
            missing[peer.name] = str(reason)
        except Exception as error:
            # A peer may run out of memory or break on this JAX, which is reported; this package must not.
            if peer.name == OURS:
                raise
            missing[peer.name] = f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return started, missing


def summary(count, device, dtype, measured):
    """Return the entry of a result file for one peer with the `Timing` `measured`."""
    fast, slow = measured.quartiles
    return {
        "count": count,
        "device": device,
        "dtype": dtype,
        "first_call_seconds": measured.first,
        "seconds": list(measured.seconds),
        "rate": count / measured.median,
        "rate_quartiles": [count / slow, count / fast],
        "spread": measured.spread,
        "wide": measured.wide,
    }


def run_case(case, peers, rounds, capped):
    """Time `peers` on `case`; return its entry of the result file."""
    with precision(case.dtype), progress() as tick:

        def turn(competitor, inputs, clock):
            tick()
            return timing.timed(competitor, inputs, clock)

        started, missing = first_calls(case, peers, capped, tick)
        competitors = {name: ready.competitor for name, (_, ready, *_) in started.items()}
        seconds = timing.interleave(competitors, rounds, measure=turn)
    results = {
        name: summary(count, ready.device, dtype, timing.Timing(first, tuple(seconds[name])))
        for name, (count, ready, first, dtype) in started.items()
    }
    if OURS in results:
        for result in results.values():
            result["ratio"] = results[OURS]["rate"] / result["rate"]
    concentration = case.concentration
    if isinstance(concentration, LogUniform):
        concentration = concentration._asdict()
    return {**case._asdict(), "concentration": concentration, "results": results, "missing": missing}


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.performance_benchmark", description=__doc__.splitlines()[0]
    )
    size = made.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", action="store_true", help="measure fewer cases in fewer rounds, with less work for slow peers"
    )
    size.add_argument("--guard", action="store_true", help="judge a few cases: PASS, FAIL or TOO NOISY")
    made.add_argument("--json", metavar="FILE", type=new_file, help="write timings, environment, accuracy, verdicts")
    names = [case.name for case in (*CASES, *grid_cases(GRIDS))]
    default = ", ".join(case.name for case in CASES)
    text = f"measure these cases, also of the grids, such as {GRIDS['sizes'][-1].name}; default: {default}"
    made.add_argument("--cases", nargs="+", choices=names, default=[], metavar="CASE", help=text)
    made.add_argument(
        "--grid", nargs="+", choices=GRIDS, default=[], metavar="GRID", help=f"measure these grids: {', '.join(GRIDS)}"
    )
    names = [peer.name for peer in PEERS]
    made.add_argument(
        "--peers", nargs="+", choices=names, metavar="PEER", help=f"measure these peers: {', '.join(names)}"
    )
    text = ", ".join(f"{mode.rounds} {name}" for name, mode in MODES.items())
    made.add_argument("--tuned", action="store_true", help="use 512-bit vectors and huge pages, for all competitors")
    made.add_argument("--rounds", type=positive, help=f"number of turns of each peer; default: {text}")
    made.add_argument(
        "--compare", metavar="OLD.json", help="name the changes since this result; exit code 1 if a case is slower"
    )
    made.add_argument("--from", dest="measured", metavar="NEW.json", help="compare this result, without a new run")
    text = f"largest loss, as a share of a ratio, that does not count as slower; default: {compare.TOLERANCE:g}"
    made.add_argument("--tolerance", type=compare.share, default=compare.TOLERANCE, metavar="SHARE", help=text)
    return made


def grid_cases(names):
    """Return the cases of the named grids."""
    return [case for name in names for case in GRIDS[name]]


def chosen(given, default):
    """Return the requested cases, in the order of the tables."""
    wanted = {*given.cases, *(case.name for case in grid_cases(given.grid))} or default
    return [case for case in (*CASES, *grid_cases(GRIDS)) if case.name in wanted]


def measure_cases(cases, measure, platform, judging, busy):
    """Measure and print each case; return the entries, and the guard's verdicts if `judging`."""
    entries, verdicts, reported = [], [], set()
    for case in cases:
        case = on_gpu(case) if platform == "gpu" else case
        print(f"\n{case.name}: {case.describe()}", flush=True)
        if judging:
            entry, found = guard.attempt(lambda case=case: measure(case), platform, guard.bounds())
            verdicts += found
        else:
            entry = measure(case)
        entries.append(entry)
        news = {name: why for name, why in entry["missing"].items() if (case.task, name, why) not in reported}
        reported.update((case.task, name, why) for name, why in news.items())
        if news:
            print(missing_text(news, LABELS))
        if entry["results"]:
            print(case_table(entry, busy), flush=True)
    return entries, verdicts


def measure_accuracy(cases, peers, mode):
    """Measure and print the accuracy for the tasks of the default cases among `cases`; grids measure speed alone."""
    names = {case.name for case in CASES}
    tasks = {case.task for case in cases if case.name in names}
    counts, errors = [], []
    if "sample" in tasks:
        print(f"\nDistinct values of |x| in {accuracy.DRAWS:,} float32 draws", flush=True)
        counts = accuracy.measure(peers, concentrations=mode.distinct)
        print(accuracy.count_table(counts))
    if tasks & {error.task for error in accuracy.ERRORS}:
        print("\nLargest errors, relative to float64 quadrature at the same float32 arguments", flush=True)
        errors = accuracy.errors(tasks, peers, mode.errors)
        print(accuracy.error_tables(errors))
    return counts, errors


def measure(given):
    """Run and print the requested measurements; return the result."""
    # By default JAX reserves three quarters of a GPU; the other libraries need memory, too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    name = "guard" if given.guard else "quick" if given.quick else "full"
    mode = MODES[name]
    rounds = given.rounds or mode.rounds
    peers = [peer for peer in PEERS if peer.name in (given.peers or mode.peers)]
    cases = chosen(given, mode.cases)

    found = environment.describe()
    state = quiet.check()
    print(environment_text(found))
    print(f"  {state.text()}")
    print(f"  Medians of {rounds} rounds, in which all peers take turns; the spread is the interquartile range.")
    platform = found["platform"]
    capped = mode.capped or platform != "cpu"
    if given.guard and not state.quiet:
        cases = []  # no ratio could be judged
    entries, verdicts = measure_cases(
        cases, lambda case: run_case(case, peers, rounds, capped), platform, given.guard, not state.quiet
    )
    counts, errors = ([], []) if given.guard else measure_accuracy(cases, peers, mode)
    if not given.guard:
        verdicts = goals.verdicts(platform, entries, busy=not state.quiet)
    if verdicts:
        print("\nGoals: our rate as a multiple of the peer's")
        print(goals.verdict_table(verdicts, LABELS))
    result = {
        "format": FORMAT,
        "environment": found,
        "machine_state": state.as_dict(),
        "options": {"mode": name, "rounds": rounds, "tuned": given.tuned},
        "cases": entries,
        "accuracy": counts,
        "errors": errors,
        "goals": [{**verdict._asdict(), "state": verdict.state} for verdict in verdicts],
    }
    if given.guard:
        result["verdict"] = guard.overall(verdicts) if state.quiet else guard.TOO_NOISY
        print(f"\n{result['verdict']}" + ("" if state.quiet else f": {quiet.BUSY}, {state.reason}"))
    return result


def tune(arguments):
    """Restart this process with huge pages, a setting that glibc reads once, and set XLA's vectors to 512 bits."""
    if HUGE_PAGES not in os.environ.get("GLIBC_TUNABLES", "").split(":"):
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, [os.environ.get("GLIBC_TUNABLES"), HUGE_PAGES]))
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.performance_benchmark", *arguments])
    from jax_von_mises import runtime

    runtime.configure(vector_width=512)


def main(arguments=None):
    """Run the benchmark.

    Returns
    -------
    int
        Exit code: 1 if `--compare` finds a regression or the guard fails, 2 if a file is no result or nothing can be
        judged; otherwise 0, even if goals are missed.
    """
    made = parser()
    given = made.parse_args(arguments)
    if given.measured is not None and (given.compare is None or given.json is not None or given.guard):
        made.error("--from replaces a run in a comparison: it needs --compare, and neither --json nor --guard")
    if given.tuned and given.measured is None:
        tune(sys.argv[1:] if arguments is None else arguments)
    start = time.perf_counter()
    try:
        # Read the files before the measurement takes minutes.
        old = None if given.compare is None else read_result(given.compare)
        result = None if given.measured is None else read_result(given.measured)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if result is None:
        with environment.without_cache():
            result = measure(given)
        finish(start, given.json, result)
    code = guard.EXIT_CODES[result["verdict"]] if given.guard else 0
    if old is not None:
        comparison = compare.compare(old, result, given.tolerance)
        print(f"\n{compare.text(comparison)}")
        code = code or (1 if comparison.regressions else 0 if comparison.judged else 2)
    return code


if __name__ == "__main__":
    sys.exit(main())
