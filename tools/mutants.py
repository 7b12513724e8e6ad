"""Make small faults in the package, one after another, and report which of them the tests detect.

From the repository root, with the dependency groups `test` and `mutants`::

    python -m tools.mutants --seed 1 --places 20 --out before.csv

The places depend only on the seed and on the source of the package, so that a second run after a change of the tests
tries the same faults. Cosmic Ray makes them in a temporary copy of the tracked files. A fault is `killed` if a test
fails that passes without the fault, and has `survived` if all tests of its area pass; `limit` means that no test failed
within the time limit. Some survivors change nothing that a caller could see.
"""

import argparse
import ast
import collections
import contextlib
import csv
import functools
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
# Folders of the package, and their tests. Files named like the module with the fault run first.
AREAS = {
    "compiler": "tests/numerics",
    "numerics": "tests/numerics tests/functions",
    "engine": "tests/sampling tests/distributions",
    "any_density": "tests/numerics tests/distributions",
    "von_mises": "tests/functions tests/numerics tests/sampling tests/test_bounds.py tests/test_properties.py",
    "sphere": "tests/numerics tests/sampling tests/distributions",
    "circle": "tests/distributions",
    "pairs": "tests/numerics tests/distributions",
    "rotations": "tests/distributions",
    "mixture": "tests/distributions",
    "streams": "tests/streams",
}
# Tables, and code that runs only on a GPU.
LEFT_OUT = ("coefficients.py", "cuda.py")
# Cosmic Ray's operators. The kind is drawn first, since Cosmic Ray has many more binary operators than others. Left out
# are those that Python refuses at once, and those between `<` and `<=`, where both branches usually agree.
KINDS = {
    "number": r"NumberReplacer",
    "binary": r"ReplaceBinaryOperator(_(Add|Sub|Mul|Div|FloorDiv|Mod|Pow)){2}",
    "bits": r"ReplaceBinaryOperator(_(RShift|LShift|BitAnd|BitXor)){2}",
    "comparison": r"ReplaceComparisonOperator_(Lt_GtE?|LtE_GtE?|Gt_LtE?|GtE_LtE?|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is)",
    "boolean": r"AddNot|Replace(True|False|And|Or)With\w+",
    "unary": r"ReplaceUnaryOperator_(USub_UAdd|Delete_\w+)",
    "loop": r"ZeroIterationForLoop|ReplaceBreakWithContinue|ReplaceContinueWithBreak",
}
# Parso's names of the parts of the source where a fault changes a message, a type or a decorator.
WORDING = ("raise_stmt", "fstring", "annassign", "tfpdef", "decorator")
ARITHMETIC = ("arith_expr", "term", "power", "shift_expr", "and_expr", "xor_expr")
# Sequences and texts, to which only `+` and `*` apply.
SEQUENCE = re.compile(r"""\s*([rbf]*["']|\[|\(\)|\([^()]*,[^()]*\)$|.*shape$)""")
COLUMNS = ("area", "module", "line", "operator", "occurrence", "change", "result", "test", "seconds")


def function_of(node):
    """Return the line of the outermost function around a node, or None where a fault is not useful."""
    line = None
    while node is not None:
        if node.type in WORDING or (node.parent and node is getattr(node.parent, "annotation", None)):
            return None
        line = node.start_pos[0] if node.type == "funcdef" else line
        node = node.parent
    return line


@functools.cache
def nodes_of(module):
    """Return the nodes of a module's syntax tree, in Cosmic Ray's order."""
    from cosmic_ray.ast import ast_nodes, get_ast

    return list(ast_nodes(get_ast(module.read_text(encoding="utf-8"))))


@functools.cache
def faults(module):
    """Return the possible faults of each function of a module, by kind: operator, occurrence in the module and line."""
    from cosmic_ray import plugins

    nodes, found = nodes_of(module), collections.defaultdict(dict)
    for kind, pattern in KINDS.items():
        for name in (name for name in plugins.operator_names() if re.fullmatch(f"core/({pattern})", name)):
            operator = plugins.get_operator(name)()
            places = [(node, start[0]) for node in nodes for start, _ in operator.mutation_positions(node)]
            for occurrence, (node, line) in enumerate(places):
                if kind in ("binary", "bits") and (
                    node.parent.type not in ARITHMETIC  # `*` and `**` of arguments
                    or any(SEQUENCE.match(part.get_code()) for part in node.parent.children)
                ):
                    continue
                if function := function_of(node):
                    found[function].setdefault(kind, []).append((name, occurrence, line))
    return found


def choose(seed, places):
    """Yield area, module, line, operator, occurrence, change and code of the faults, at most one for each function."""
    from cosmic_ray import mutating, plugins

    for area in AREAS:
        draw, chosen = random.Random(f"{seed} {area}"), 0
        modules = [file for file in sorted((ROOT / "jax_von_mises" / area).rglob("*.py")) if file.name not in LEFT_OUT]
        functions = [(file, function_of(node)) for file in modules for node in nodes_of(file) if node.type == "funcdef"]
        functions = sorted({(file, line) for file, line in functions if line})
        draw.shuffle(functions)
        for module, function in functions:
            if chosen == places // len(AREAS):
                break
            kinds = faults(module)[function]
            if not kinds:
                continue
            name, occurrence, line = draw.choice(kinds[draw.choice(sorted(kinds))])
            code = module.read_text(encoding="utf-8")
            after = mutating.mutate_code(code, plugins.get_operator(name)(), occurrence)
            with contextlib.suppress(SyntaxError):
                if ast.dump(ast.parse(after)) != ast.dump(ast.parse(code)):
                    chosen += 1
                    change = " -> ".join(text.splitlines()[line - 1].strip() for text in (code, after))
                    yield area, module.relative_to(ROOT), line, name.removeprefix("core/"), occurrence, change, after


def run(copy, arguments, minutes):
    """Run pytest in the copy; return the result, the test or error that ended it, and the CPU time in seconds."""
    before, log = resource.getrusage(resource.RUSAGE_CHILDREN), copy.parent / "log"
    seconds = round(60 * minutes)
    with open(log, "w") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", f"--basetemp={copy.parent / 'scratch'}", *arguments],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 10)),
        )
    try:
        code = child.wait(2 * seconds)
    except subprocess.TimeoutExpired:
        code = -signal.SIGXCPU  # as for too much CPU time
    finally:
        with contextlib.suppress(ProcessLookupError):  # also ends what the tests have left running
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)
    if code in (0, -signal.SIGXCPU):
        return "limit" if code else "survived", "", used
    text = log.read_text(errors="replace")
    ends = re.findall(r"^(?:FAILED|ERROR) (tests/.*)", text, re.M) or re.findall(r"^E  +(.*)", text, re.M)
    return "killed", (ends or text.splitlines()[-1:] or [f"exit code {code}"])[0], used


def copied(folder):
    """Copy the tracked files into a folder, check that Python imports the package from there, and return its path."""
    copy = folder.resolve() / "copy"
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0"):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    command = [sys.executable, "-c", "import jax_von_mises; print(jax_von_mises.__file__)"]
    found = subprocess.check_output(command, cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, text=True)
    assert pathlib.Path(found).is_relative_to(copy), found
    return copy


def main(arguments=None):
    """Make the faults, and print and write what the tests found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="another seed chooses other places")
    parser.add_argument("--places", type=int, default=20, help=f"number of faults, a multiple of {len(AREAS)}")
    parser.add_argument("--out", type=pathlib.Path, help="CSV file for the results")
    parser.add_argument("--minutes", type=float, default=3, help="limit for each fault: CPU time; elapsed: twice that")
    parser.add_argument("--tests", help="files, folders or names of tests, instead of those of each area")
    parser.add_argument("--marker", help="expression for pytest's -m, instead of the one in pyproject.toml")
    parser.add_argument("--cache", type=pathlib.Path, help="pytest's folder to use (default: a copy of .pytest_cache)")
    parser.add_argument("--list", action="store_true", help="only print the places")
    given = parser.parse_args(arguments)
    places = list(choose(given.seed, given.places))
    if given.list:
        for _, module, line, name, _, change, _ in places:
            print(f"{module}:{line}: {name}: {change}")
        return
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="mutants", ignore_cleanup_errors=True)
        copy = copied(pathlib.Path(stack.enter_context(folder)))
        cache = given.cache.resolve() if given.cache else copy.parent / "cache"
        if not given.cache and (ROOT / ".pytest_cache").exists():
            shutil.copytree(ROOT / ".pytest_cache", cache)
        options = ["-o", f"cache_dir={cache}", *(("-m", given.marker) if given.marker else ())]
        tests = {area: (given.tests or names).split() for area, names in AREAS.items()}
        for area, names in tests.items():
            result, reason, _ = run(copy, ["--collect-only", *names, *options], 10)
            if result != "survived":
                sys.exit(f"the tests of {area} cannot start without a fault: {reason or result}")
            if not given.tests:
                files = [file for name in names for file in sorted((copy / name).rglob("test_*.py")) or [copy / name]]
                tests[area] = [str(file.relative_to(copy)) for file in files]
        rows = csv.writer(stack.enter_context(open(given.out or os.devnull, "w", newline="", buffering=1)))
        rows.writerow(COLUMNS)
        for area, module, line, name, occurrence, change, code in places:
            original = (copy / module).read_bytes()
            (copy / module).write_text(code, encoding="utf-8")
            names = sorted(tests[area], key=lambda test, stem=module.stem: stem not in pathlib.Path(test).name)
            result, test, seconds = run(copy, [*(tests[area] if given.tests else names), *options], given.minutes)
            (copy / module).write_bytes(original)
            if found := re.match(r"tests/\S+\.py(::.*?)?(?= - |$)", test):
                without, reason, _ = run(copy, [found[0], *options], given.minutes)
                if without != "survived":
                    sys.exit(f"{found[0]} fails without a fault, too: {reason or without}")
            print(f"{module}:{line}: {change}\n    {result} after {seconds:.0f} s of CPU time  {test}", flush=True)
            rows.writerow((area, module, line, name, occurrence, change, result, test, seconds))


if __name__ == "__main__":
    main()
