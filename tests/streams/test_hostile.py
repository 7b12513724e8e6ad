"""Files made to do harm are refused in words, in time and in little memory, with nothing changed elsewhere."""

import ast
import json
import re
import subprocess
import sys

import pytest

pytest.importorskip("tensorstore", reason="stores are read through TensorStore: the extra `storage`")
pytest.importorskip("flatbuffers", reason="samplers are exported too: the extra `export`")
pytest.importorskip("resource", reason="pipes and limits are POSIX's")

from tests import children, hostile

# Bytes by which the memory of the process may grow in one case: pieces that are read, not what they claim to become.
GROWTH = {"npy": 2**28, "zarr": 2**28, "sampler": 2**27, "parameters": 2**27, "results": 2**28}


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is one of Linux")
@pytest.mark.parametrize("kind", hostile.CASES)
def test_refused_in_words(kind, tmp_path):
    command = [sys.executable, "-W", "error", "-m", "tests.hostile", kind, str(tmp_path)]
    environment = children.environment(JAX_PLATFORMS="cpu")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=children.ROOT, env=environment)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"after {[each['case'] for each in found[-1:]]}: {done.stderr[-3000:]}"
    assert [each["case"] for each in found] == list(hostile.CASES[kind])
    wrong = [each for each in found if not re.search(each["words"], each["text"]) or each["grown"] > GROWTH[kind]]
    assert wrong == []


# What runs what it reads, or could.
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "code", "codeop"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "tempfile.mktemp", "subprocess.getoutput"}
SOURCES = [
    path
    for folder in ("jax_von_mises", "benchmarks", "tools", "docs")
    for path in sorted((children.ROOT / folder).rglob("*.py"))
    if "_build" not in path.parts
]


def called(node):
    """The name of what a call calls."""
    return ast.unparse(node.func)


def dangers(text):
    """Lines of a source that could run what they read, each with the reason."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]}
        else:
            names = set()
        yield from ((node.lineno, name) for name in names & MODULES)
        if not isinstance(node, ast.Call):
            continue
        if called(node) in CALLS:
            yield node.lineno, called(node)
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        shell = given.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            yield node.lineno, "shell"
        allowed = given.get("allow_pickle")
        # Left out it is off, in every NumPy that the package runs with.
        if allowed is not None and not (isinstance(allowed, ast.Constant) and allowed.value is False):
            yield node.lineno, "allow_pickle"


def test_nothing_runs_what_it_reads():
    """No pickles, no evaluation, no shell: not in the package, and not around it."""
    assert len(SOURCES) > 60
    found = {str(path.relative_to(children.ROOT)): list(dangers(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from yaml import load",
        "np.load(x, allow_pickle=True)",
        "np.load(x, allow_pickle=given)",
        "eval(x)",
        "subprocess.run(x, shell=True)",
        "os.system(x)",
    ],
)
def test_what_would_run_is_seen(text):
    assert list(dangers(text))
