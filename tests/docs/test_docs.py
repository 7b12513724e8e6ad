"""Test that the code on the pages runs as printed, from top to bottom, and prints what the pages show.

The ``python`` blocks of a page run one after another in one process, and each ``py`` block in a separate process. The
lines of ``sh`` and ``console`` blocks run in one directory. Lines that install, take too long or need a cluster do not
run; only their names and options are checked against the programs that they call. ``make test`` runs the README, and
``make docs-code`` runs every page and the examples in the docstrings.
"""

import ast
import contextlib
import doctest
import importlib
import io
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest

from docs import pages
from jax_von_mises.cli import commands as command_line_run
from jax_von_mises.cli import program as command_line
from jax_von_mises.streams import writer
from tests import children

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
# Languages of blocks, as written after the fence; names in braces are Sphinx directives.
CODE, TEXT = ("python", "py", "sh", "console", "yaml"), ("text",)

# Statements followed by their output in a comment.
SHOWN = re.compile(r"^ *print\(.*\)  # (.+)$", re.M)

# The mark of a cluster's job script, which is not run here.
JOB = "#SBATCH"
# Arguments of `jax-von-mises` in lines that are only parsed, since they take too long or need a bucket or shared disk.
TOO_LONG = re.compile(r"1e1[0-9]|gs://|/shared/|10_000_000")
# External programs that cannot run here.
FOREIGN = (
    "git",
    "cd",
    "source",
    "xprof",
    "nvidia-smi",
    "docker",
    "wget",
    "pytest",
)
# External programs and shell commands that run here.
COMPANIONS = ("dask", "until", "kill", "wait", "cmp", "ls", "export")


def blocks(page, *languages):
    """Return the blocks of a page in these languages, in order."""
    text = PAGES[page].read_text(encoding="utf-8")
    return [body for language, body in re.findall(r"^```(\S*)\n(.*?)^```$", text, re.M | re.S) if language in languages]


def lines(block):
    """Return the command lines of a block; in a transcript, these are only the lines after a prompt."""
    entered = block.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in entered):
        entered = [line[2:] for line in entered if line.startswith("$ ")]
    return [line for line in entered if line.strip() and not line.startswith("#")]


def with_blocks(*languages):
    """Return the pages that have blocks in these languages."""
    return [page for page in PAGES if blocks(page, *languages)]


def newcomers_first(pages, mark=()):
    """Return pages as parameters of a test; all except the README are slow."""
    return [pytest.param(page, marks=mark if page == "README" else pytest.mark.slow) for page in pages]


def words(line):
    """Return the words of a command line, up to the first shell operator."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    tokens = list(lexer)
    ends = (i for i, word in enumerate(tokens) if set(word) <= set(";&|<>"))
    return tokens[: next(ends, len(tokens))]


def runs(line):
    """Return whether a command line can run here."""
    first = words(line)[:1]
    if first == ["jax-von-mises"]:
        return not TOO_LONG.search(line)
    return first not in (["pip"], ["make"], ["./install_gpu.sh"], ["python"], *([name] for name in FOREIGN))


@pytest.fixture
def as_users_have_it(monkeypatch, tmp_path):
    """Provide JAX's default promotion, an empty directory, and a separate cache directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.usefixtures("no_cache", "as_users_have_it")
@pytest.mark.parametrize("page", newcomers_first(with_blocks("python")))
def test_python_runs(page):
    if page == "runtime":
        pytest.importorskip("flatbuffers", reason="flatbuffers is not installed")
    if page == "tour":
        pytest.importorskip("matplotlib", reason="Matplotlib is not installed")
    if page in ("migration", "numpyro"):
        pytest.importorskip("numpyro", reason="NumPyro is not installed")
    space = {}
    for block in blocks(page, "python"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, f"{page}.md", "exec"), space)
        outputs = SHOWN.findall(block) if page in ("README", "tour") else ()
        for line, shown in zip(printed.getvalue().splitlines(), outputs, strict=False):
            assert agrees(line, shown), (page, line, shown)


def agrees(line, shown):
    """Return whether a line agrees with the page up to an ellipsis, where numbers may have a relative error of 1e-4."""
    number = re.compile(r"-?\d+\.\d*(?:e-?\d+)?")
    start = shown.split("...")[0]
    words, values = number.sub("", line), [float(digits) for digits in number.findall(line)]
    expected = [float(digits) for digits in number.findall(start)]
    # The last digits may differ between processors.
    close = all(abs(value - each) <= 1e-4 * abs(each) for value, each in zip(values, expected, strict=False))
    return close and "".join(words.split()).startswith("".join(number.sub("", start).split()))


@pytest.mark.slow
@pytest.mark.parametrize("page", with_blocks("py"))
def test_py_blocks_run(page, tmp_path, monkeypatch):
    """Code that must run before JAX starts is written as `py`, and runs in a separate process."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "py"):
        assert "configure" in block or "jax.config" in block
        children.run(block, JAX_PLATFORMS=None)


PAGES_THAT_RUN = [
    page
    for page in with_blocks("sh", "console")
    if any(runs(line) for block in blocks(page, "sh", "console") if JOB not in block for line in lines(block))
]


@pytest.mark.parametrize("page", newcomers_first(PAGES_THAT_RUN, pytest.mark.more))
def test_commands_run(page, tmp_path):
    """All commands of a page run in one directory; `jax-von-mises` is the tested package, installed or not."""
    program = tmp_path / "bin" / "jax-von-mises"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m jax_von_mises "$@"\n')
    program.chmod(0o755)
    (program.parent / "dask").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dask "$@"\n')
    (program.parent / "dask").chmod(0o755)
    entered = [line for block in blocks(page, "sh", "console") if JOB not in block for line in lines(block)]
    script = "\n".join(line for line in entered if runs(line))
    if ".zarr" in script:
        pytest.importorskip("zarr", reason="zarr-python is not installed (extra `storage`)")
    if page == "tour":
        # The Python code of the page writes this file first.
        write = "import jax, jax_von_mises as j; j.write_samples('angles.npy', jax.random.key(0), .5, 4., 3_000_000)"
        script = f'{sys.executable} -c "{write}"\n{script}'
    environment = children.environment(PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        ["bash", "-eum", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr


def commands():
    """Yield (page, words) for each command line in the shell blocks and YAML lists of all pages."""
    for page in PAGES:
        for block in blocks(page, "sh", "console"):
            yield from ((page, words(line)) for line in lines(block) if words(line))
        for block in blocks(page, "yaml"):
            for listed in re.findall(r"command: \[(.*?)\]", block, re.S):
                yield page, [word.strip().strip('"') for word in listed.split(",")]


def help_of(module):
    """Return the --help text of a program in the repository."""
    program = importlib.import_module(module)
    if hasattr(program, "__path__"):
        program = importlib.import_module(f"{module}.__main__")
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        program.main(["--help"])
    return printed.getvalue()


def test_commands_are_valid():
    """All commands, even those that cannot run here, are valid according to their program's parser or --help text."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = set(project["project"]["optional-dependencies"])
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    counts = {}
    for page, command in commands():
        name, options = command[0], [word.split("=")[0] for word in command[1:] if word.startswith("--")]
        counts[name] = counts.get(name, 0) + 1
        where = f"{page}: {' '.join(command)}"
        if name in ("jax-von-mises", "srun") and "jax-von-mises" in command:
            given = [re.sub(r"\$\w+", "1", word) for word in command[command.index("jax-von-mises") + 1 :]]
            arguments = command_line.make_parser().parse_args(given)
            if arguments.command == "sample":
                command_line_run.distribution_of(arguments)
                assert arguments.out.endswith(".csv") or writer.kind_of("test", arguments.out)
        elif name == "pip":
            requested = re.findall(r"(?:jax_von_mises|\.)\[([\w,]+)\]", " ".join(command))
            assert {extra for each in requested for extra in each.split(",")} <= extras, where
        elif name == "make":
            assert {word for word in command[1:] if "=" not in word} <= targets, where
        elif name == "./install_gpu.sh":
            script = (ROOT / "install_gpu.sh").read_text()
            assert all(option in script for option in options), where
        elif command[:2] == ["python", "-m"]:
            printed = help_of(command[2])
            assert all(option in printed for option in options), where
        else:
            assert name in (*FOREIGN, *COMPANIONS), where
    assert all(counts[name] >= 3 for name in ("jax-von-mises", "pip", "make", "python"))


WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "jax_von_mises").rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_of_docstrings(module):
    if module.endswith("numpyro"):
        pytest.importorskip("numpyro", reason="NumPyro is not installed")
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted
    assert not result.failed


def test_pages_show_the_committed_results_and_examples():
    """Tables and excerpts of the pages are current; `python -m docs.pages` updates them."""
    outdated = [path.name for path in PAGES.values() if pages.filled(text := path.read_text("utf-8")) != text]
    assert not outdated, "run python -m docs.pages"
    assert pages.notebook(PAGES["tour"].read_text(encoding="utf-8")) == pages.NOTEBOOK.read_text(encoding="utf-8")


def reference():
    """Return the full name of each entry of the reference pages, in order."""
    names = []
    for page, path in PAGES.items():
        if page.startswith("api-"):
            text = path.read_text(encoding="utf-8")
            entries = re.findall(r"(currentmodule|automodule|autofunction|autoclass):: ([\w.]+)", text)
            for kind, name in entries:
                if kind == "currentmodule":
                    module = name
                else:
                    names.append(name if "." in name else f"{module}.{name}")
    return names


@pytest.mark.parametrize("name", [name for name in reference() if ".dask" not in name and ".numpyro" not in name])
def test_the_reference_names_what_exists(name):
    pkgutil.resolve_name(name)


@pytest.mark.parametrize("module", ["__init__.py", "runtime/__init__.py", "statistics.py", "dask.py"])
def test_the_reference_has_every_public_name(module):
    # Read the file as text, since Dask may not be installed.
    text = (ROOT / "jax_von_mises" / module).read_text(encoding="utf-8")
    public = set(ast.literal_eval(re.search(r"^__all__ = (\[.*?\])", text, re.M | re.S)[1])) - {"runtime", "statistics"}
    prefix = ".".join(["jax_von_mises", *Path(module).with_suffix("").parts]).removesuffix(".__init__")
    shown = set(reference()) | {"jax_von_mises.initialize_compilation_cache"}
    assert {f"{prefix}.{name}" for name in public} <= shown
    listed = set(re.findall(r"`(?:[\w.]+\.)?(\w+)", PAGES["functions"].read_text(encoding="utf-8")))
    # The tables omit the result classes of `runtime` and `statistics`.
    assert {name for name in public if name[0].islower() or module == "__init__.py"} <= listed
