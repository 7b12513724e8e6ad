"""Compare the speed and accuracy of the samplers and functions with those of other libraries, in one process.

``python -m benchmarks.performance_benchmark --quick`` times the most important cases in about two minutes on two cores;
without ``--quick`` all cases take about half an hour. The program prints a table for each case, the accuracy, and a
verdict on each goal. ``--json FILE`` saves all results for ``python -m benchmarks.plots FILE`` and for later
comparisons. ``--tuned`` enables 512-bit vectors in XLA and huge pages for all competitors.

``--grid sizes dtypes keys`` times cases of different sizes, dtypes and keys; ``--help`` lists the other grids.
``--compare OLD.json`` lists the changes since that result; with ``--from NEW.json`` it compares two files without a new
run. ``--guard`` judges a few cases against reduced goals. Its exit code is 0 for PASS and TOO NOISY, 1 for FAIL, and 2
if nothing can be judged.
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
FORMAT = 2  # of the result file; increase it if readers of the old format would misread the new one


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


def noting(competitor, dtypes):
    """Return a copy of `competitor` that appends each result's dtype (None if it is not an array) to `dtypes`."""

    def wait(result):
        dtype = getattr(result, "dtype", None)
        dtypes.append(None if dtype is None else str(dtype).removeprefix("torch."))
        return competitor.wait(result)

    return competitor._replace(wait=wait)


def first_calls(case, peers, capped, tick):
    """Prepare every peer for `case`, and time its first call.

    Returns
    -------
    started : dict of str to tuple
        For each peer that runs, its number of elements, its `Ready` function, the seconds of its first call, and the
        dtype of the result.
    missing : dict of str to str
        The reason for each other peer.
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
            # If another library runs out of memory or fails on this JAX, only report it.
            if peer.name == OURS:
                raise
            missing[peer.name] = f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return started, missing


def summary(count, device, dtype, measured):
    """Return the entry of one peer in a result file; `measured` is its `Timing`."""
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
    """Time `peers` on `case`; return the entry of the case in the result file."""
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
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance_benchmark", description=__doc__.splitlines()[0]
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", action="store_true", help="measure fewer cases in fewer rounds, with less work for slow peers"
    )
    size.add_argument("--guard", action="store_true", help="judge a few cases: PASS, FAIL or TOO NOISY")
    parser.add_argument("--json", metavar="FILE", type=new_file, help="write all results and the environment")
    names = [case.name for case in (*CASES, *grid_cases(GRIDS))]
    default = ", ".join(case.name for case in CASES)
    text = f"measure these cases, which may belong to grids, such as {GRIDS['sizes'][-1].name}; default: {default}"
    parser.add_argument("--cases", nargs="+", choices=names, default=[], metavar="CASE", help=text)
    parser.add_argument(
        "--grid", nargs="+", choices=GRIDS, default=[], metavar="GRID", help=f"measure these grids: {', '.join(GRIDS)}"
    )
    names = [peer.name for peer in PEERS]
    parser.add_argument(
        "--peers", nargs="+", choices=names, metavar="PEER", help=f"measure only these peers: {', '.join(names)}"
    )
    text = ", ".join(f"{mode.rounds} {name}" for name, mode in MODES.items())
    parser.add_argument("--tuned", action="store_true", help="use 512-bit vectors in XLA, and huge pages")
    parser.add_argument("--rounds", type=positive, help=f"number of rounds; default: {text}")
    parser.add_argument(
        "--compare", metavar="OLD.json", help="list changes since this result; the exit code is 1 if a case is slower"
    )
    parser.add_argument("--from", dest="measured", metavar="NEW.json", help="compare this result, without a new run")
    text = f"largest loss, relative to the old ratio, that does not count as slower; default: {compare.TOLERANCE:g}"
    parser.add_argument("--tolerance", type=compare.share, default=compare.TOLERANCE, metavar="SHARE", help=text)
    return parser


def grid_cases(names):
    """Return the cases of the named grids."""
    return [case for name in names for case in GRIDS[name]]


def chosen(options, default):
    """Return the requested cases, or those in `default`, in the order of `CASES` and `GRIDS`."""
    wanted = {*options.cases, *(case.name for case in grid_cases(options.grid))} or default
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
    """Measure and print the accuracy for the tasks of the default cases among `cases`; grids measure only speed."""
    names = {case.name for case in CASES}
    tasks = {case.task for case in cases if case.name in names}
    counts, errors = [], []
    if "sample" in tasks:
        print(f"\nDistinct values of |x| in {accuracy.DRAWS:,} float32 draws", flush=True)
        counts = accuracy.measure(peers, concentrations=mode.distinct)
        print(accuracy.count_table(counts))
    if tasks & {error.task for error in accuracy.ERRORS}:
        print("\nLargest errors, compared with float64 quadrature at the same float32 arguments", flush=True)
        errors = accuracy.errors(tasks, peers, mode.errors)
        print(accuracy.error_tables(errors))
    return counts, errors


def measure(options):
    """Run and print the requested measurements; return the result."""
    # By default, JAX reserves three quarters of a GPU's memory, but the other libraries need memory, too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    name = "guard" if options.guard else "quick" if options.quick else "full"
    mode = MODES[name]
    rounds = options.rounds or mode.rounds
    peers = [peer for peer in PEERS if peer.name in (options.peers or mode.peers)]
    cases = chosen(options, mode.cases)

    machine = environment.describe()
    state = quiet.check()
    print(environment_text(machine))
    print(f"  {state.text()}")
    print(f"  Medians of {rounds} rounds, in which all peers take turns; spread: interquartile range over median.")
    platform = machine["platform"]
    capped = mode.capped or platform != "cpu"
    if options.guard and not state.quiet:
        cases = []  # no ratio could be judged
    entries, verdicts = measure_cases(
        cases, lambda case: run_case(case, peers, rounds, capped), platform, options.guard, not state.quiet
    )
    counts, errors = ([], []) if options.guard else measure_accuracy(cases, peers, mode)
    if not options.guard:
        verdicts = goals.verdicts(platform, entries, busy=not state.quiet)
    if verdicts:
        print("\nGoals: our rate as a multiple of the peer's")
        print(goals.verdict_table(verdicts, LABELS))
    result = {
        "format": FORMAT,
        "environment": machine,
        "machine_state": state.as_dict(),
        "options": {"mode": name, "rounds": rounds, "tuned": options.tuned},
        "cases": entries,
        "accuracy": counts,
        "errors": errors,
        "goals": [{**verdict._asdict(), "state": verdict.state} for verdict in verdicts],
    }
    if options.guard:
        result["verdict"] = guard.overall(verdicts) if state.quiet else guard.TOO_NOISY
        print(f"\n{result['verdict']}" + ("" if state.quiet else f": {quiet.BUSY}, {state.reason}"))
    return result


def tune(arguments):
    """Restart this process with huge pages, which glibc enables only at startup, and set XLA's vectors to 512 bits."""
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
        The exit code is 1 if `--compare` finds a regression or the guard fails, and 2 if a file is not a result or
        nothing can be judged. Otherwise it is 0, even if goals are missed.
    """
    command_line = parser()
    options = command_line.parse_args(arguments)
    if options.measured is not None and (options.compare is None or options.json is not None or options.guard):
        command_line.error("--from replaces a new run, so it needs --compare and excludes --json and --guard")
    if options.tuned and options.measured is None:
        tune(sys.argv[1:] if arguments is None else arguments)
    start = time.perf_counter()
    try:
        # Read the files first, since the measurement takes minutes.
        old = None if options.compare is None else read_result(options.compare)
        result = None if options.measured is None else read_result(options.measured)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if result is None:
        with environment.without_cache():
            result = measure(options)
        finish(start, options.json, result)
    code = guard.EXIT_CODES[result["verdict"]] if options.guard else 0
    if old is not None:
        comparison = compare.compare(old, result, options.tolerance)
        print(f"\n{compare.text(comparison)}")
        code = code or (1 if comparison.regressions else 0 if comparison.judged else 2)
    return code


if __name__ == "__main__":
    sys.exit(main())
