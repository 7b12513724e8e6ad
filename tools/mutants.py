"""Measure which errors the tests of four folders find, by changing the package in one place at a time.

From the repository root, with the extras ``test`` and ``mutants`` installed::

    python -m tools.mutants --seed 1 --count 30 --json before.json
    python -m tools.mutants --seed 1 --count 30 --json after.json --before before.json

cosmic-ray replaces an operator, a comparison, a number, a condition, a loop or an exception handler. The seed selects
about equally many places in each folder, and one change for each place. Each change is made in a copy of the tree,
where the tests of its folder run in the order of their files until one fails.

The main limit is on the CPU time of the test process, since elapsed time depends on the load of the machine. A second
limit, on elapsed time, ends tests that wait forever. A mutant that reaches a limit counts as not found. Some mutants
change nothing that a caller could see, so read the survivors before you draw conclusions.

The results are saved after each mutant, and the same command continues an interrupted run.
"""

import argparse
import ast
import concurrent.futures
import contextlib
import importlib.metadata
import json
import math
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings

__all__ = ["main"]

AREAS = ("numerics", "functions", "sampling", "streams")
# Modules without mutants: generated constants, and lists of names.
LEFT_OUT = ("coefficients.py", "__init__.py")
# An operator is replaced only within its kind. A change such as `float << float` fails at once and would show little.
KINDS = (
    {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"},
    {"RShift", "LShift", "BitOr", "BitAnd", "BitXor"},
    {"Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"},
    {"Is", "IsNot"},
    {"USub", "UAdd", "Invert", "Delete"},
    {"Not", "Delete"},
)
# Seconds of CPU time of the test process, and of elapsed time.
CPU_LIMIT, ELAPSED_LIMIT = 180, 600
# The exit codes of `timeout`, and of a process that the kernel ended, as a shell reports them.
LIMIT_REACHED = (124, 128 + signal.SIGKILL, 128 + signal.SIGXCPU)
# Line numbers may change between two runs, so they do not identify a mutant.
IDENTITY = ("module", "function", "operator", "occurrence")
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.M)
STARTED = re.compile(r"^(tests/\S+?::[^\s\[]+(?:\[.*?\](?= |$))?)", re.M)


def operators():
    """Return cosmic-ray's operators that need no arguments and stay within one kind, by name."""
    from cosmic_ray import plugins

    chosen = {name: plugins.get_operator(name) for name in plugins.operator_names()}
    # Removing a decorator either changes nothing (a cache) or stops the import.
    del chosen["core/RemoveDecorator"]
    pairs = {name: set(name.split("_")[1:]) for name in chosen}
    return {
        name: operator()
        for name, operator in chosen.items()
        if not operator.arguments() and any(pairs[name] <= kind for kind in KINDS)
    }


def is_code(node):
    """Return whether a syntax node is outside type annotations and the text of messages."""
    while (parent := node.parent) is not None:
        annotation = (
            (parent.type == "annassign" and node is parent.children[1])
            or (parent.type == "tfpdef" and node is parent.children[-1])
            or (parent.type == "funcdef" and node is parent.annotation)
        )
        if annotation or parent.type in ("raise_stmt", "fstring"):
            return False
        node = parent
    return True


def enclosing(node):
    """Return the qualified name of the function or class around a syntax node."""
    names = []
    while (node := node.parent) is not None:
        if node.type in ("funcdef", "classdef"):
            names.insert(0, node.name.value)
    return ".".join(names) or "<module>"


def mutants_by_place(path):
    """Return all mutants of a module, as {(line, column): [(function, operator, occurrence), ...]}."""
    from cosmic_ray import ast as trees

    nodes = list(trees.ast_nodes(trees.get_ast_from_path(path)))
    places = {}
    for name, operator in operators().items():
        found = ((node, start) for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, (node, start) in enumerate(found):
            if is_code(node):
                places.setdefault(start, []).append((enclosing(node), name, occurrence))
    return places


def mutate(source, operator, occurrence):
    """Return the source of a module with one mutation, or None if the result is invalid or the same program."""
    from cosmic_ray import mutating

    mutated = mutating.mutate_code(source, operators()[operator], occurrence)
    with warnings.catch_warnings():
        # The tests turn warnings into errors, so a module that compiles with a warning fails at import.
        warnings.simplefilter("error")
        try:
            compile(mutated, "<mutant>", "exec")
        except (SyntaxError, ValueError):
            return None
    return None if ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(source)) else mutated


def draw(tree, area, count, seed):
    """Return `count` mutants of a folder at distinct places, as dictionaries."""
    generator = random.Random(f"{seed} {area}")
    paths = [path for path in sorted((tree / "jax_von_mises" / area).glob("*.py")) if path.name not in LEFT_OUT]
    places = [(path, *each) for path in paths for each in sorted(mutants_by_place(path).items())]
    drawn = []
    for path, (_, column), choices in generator.sample(places, len(places)):
        function, operator, occurrence = generator.choice(choices)
        source = path.read_text(encoding="utf-8")
        mutated = mutate(source, operator, occurrence)
        if mutated is None:
            continue
        pairs = zip(source.splitlines(), mutated.splitlines(), strict=False)
        line, (old, new) = next((i, pair) for i, pair in enumerate(pairs, 1) if pair[0] != pair[1])
        drawn.append(
            dict(area=area, module=str(path.relative_to(tree)), function=function, operator=operator)
            | dict(occurrence=occurrence, line=line, column=column, text=old.strip(), becomes=new.strip())
        )
        if len(drawn) == count:
            break
    return drawn


def run_tests(tests, options, mutant=None, factor=1):
    """Run tests in a copy of the tree; return the exit code, the output, CPU seconds and elapsed seconds."""
    limits = f"ulimit -c 0; ulimit -S -t {factor * CPU_LIMIT}; exec timeout --foreground -k 10 {factor * ELAPSED_LIMIT}"
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as made:
        tree, log = pathlib.Path(made, "tree").resolve(), pathlib.Path(made, "log")
        ignored = shutil.ignore_patterns(".*", "_build", "__pycache__")
        shutil.copytree(options.tree, tree, symlinks=True, ignore=ignored)
        if mutant:
            path = tree / mutant["module"]
            path.write_text(mutate(path.read_text(encoding="utf-8"), mutant["operator"], mutant["occurrence"]), "utf-8")
        command = [
            *shlex.split(options.prefix),
            "sh",
            "-c",
            f'{limits} "$@"',
            "sh",
            options.python,
            "-u",
            "-m",
            "pytest",
        ]
        command += ["-v", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={made}/temporary", *tests]
        start = time.monotonic()
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                cwd=tree,
                env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            # `Popen.wait` does not return the CPU time.
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # child processes of tests that were stopped
        output = log.read_text(errors="replace")
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    if code in (4, 5):
        raise RuntimeError(f"pytest found no test: {shlex.join(command)}\n{output}")
    return code, output, round(usage.ru_utime + usage.ru_stime), round(time.monotonic() - start)


def try_mutant(mutant, options):
    """Return a mutant with the outcome of its tests."""
    code, output, cpu, elapsed = run_tests(["-x", f"tests/{mutant['area']}"], options, mutant)
    tests = FAILED.findall(output) or STARTED.findall(output)[-1:] or [None]
    outcome = "survived" if code == 0 else "time limit" if code in LIMIT_REACHED else "killed"
    return mutant | dict(outcome=outcome, test=tests[0], exit_code=code, cpu_seconds=cpu, elapsed_seconds=elapsed)


def fail_unchanged(results, options):
    """Return the tests that killed a mutant but also fail on the unchanged tree."""
    killers = sorted({each["test"] for each in results if each["outcome"] == "killed" and "::" in (each["test"] or "")})
    if not killers:
        return []
    code, output, _, _ = run_tests(killers, options, factor=len(killers))
    if code not in (0, 1):
        raise RuntimeError(f"the tests did not finish on the unchanged tree:\n{output}")
    return FAILED.findall(output)


def save(results, options):
    """Write the results to the JSON file."""
    head = {"seed": options.seed, "cosmic-ray": importlib.metadata.version("cosmic-ray")}
    options.json.write_text(json.dumps(head | {"results": results}, indent=1) + "\n")


def load(path):
    """Return the results in a JSON file, by the `identity` of the mutant."""
    return {identity(each): each for each in json.loads(path.read_text())["results"]}


def identity(mutant):
    """Return the values that identify a mutant in different runs."""
    return tuple(mutant[name] for name in IDENTITY)


def table(results):
    """Return a Markdown table of the results."""
    rows = ["| Mutant | Change | Outcome | Failed or last test | CPU s |", "| --- | --- | --- | --- | ---: |"]
    for each in results:
        place = f"{each['module'].removeprefix('jax_von_mises/')}:{each['line']} {each['function']}"
        change = f"`{each['text']}` → `{each['becomes']}`".replace("|", "\\|")
        rows.append(f"| {place} | {change} | {each['outcome']} | {each['test']} | {each['cpu_seconds']} |")
    return "\n".join(rows)


def main(arguments=None):
    """Draw mutants, test each and print a table; return 1 if a mutant that was killed before is not killed now."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True, help="the same seed draws the same mutants")
    parser.add_argument("--count", type=int, default=30, help="number of mutants")
    parser.add_argument("--json", type=pathlib.Path, required=True, help="file for the results")
    parser.add_argument("--before", type=pathlib.Path, help="results of an earlier run, to compare with")
    parser.add_argument("--jobs", type=int, default=1, help="number of mutants tested at the same time")
    parser.add_argument("--tree", type=pathlib.Path, default=pathlib.Path(__file__).parents[1], help="checkout to test")
    parser.add_argument("--python", default=sys.executable, help="Python that runs the tests")
    parser.add_argument("--prefix", default="", help="start of the test command, such as 'nice -n 5'")
    options = parser.parse_args(arguments)
    drawn = []
    for i, area in enumerate(AREAS):
        count = math.ceil(options.count * (i + 1) / len(AREAS)) - math.ceil(options.count * i / len(AREAS))
        drawn += draw(options.tree, area, count, options.seed)
    names = [identity(mutant) for mutant in drawn]
    before = load(options.before) if options.before else {}
    if before and set(before) != set(names):
        raise SystemExit(f"{options.before} has other mutants: seed, count, package or cosmic-ray differ")
    done = load(options.json) if options.json.exists() else {}
    done = {name: done[name] for name in names if name in done}
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    try:
        waiting = [pool.submit(try_mutant, each, options) for each in drawn if identity(each) not in done]
        for future in concurrent.futures.as_completed(waiting):
            mutant = future.result()
            done[identity(mutant)] = mutant
            save([done[name] for name in names if name in done], options)
            print(f"{mutant['module']}:{mutant['line']} {mutant['outcome']}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
    failing = fail_unchanged(done.values(), options)
    for mutant in done.values():
        if mutant["outcome"] == "killed" and mutant["test"] in failing:
            mutant["outcome"] = "unclear"
    results = [done[name] for name in names]
    save(results, options)
    print(table(results))
    lost = [name for name in before if before[name]["outcome"] == "killed" and done[name]["outcome"] != "killed"]
    for name in lost:
        print(f"killed before, not now: {name[0]}:{done[name]['line']} {name[1]}: {done[name]['becomes']}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
