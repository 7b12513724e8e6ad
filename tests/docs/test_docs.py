"""The pages: their code runs as it is printed, from top to bottom, and prints what the page shows.

``python`` blocks of a page run one after the other in one process, ``py`` blocks each in one of its own. Lines of
``sh`` and ``console`` blocks run in one directory, but for those that install, take minutes or need a cluster: these
are held against the programs that they call. What a newcomer runs first is part of ``make test``; ``make docs-code``
runs every page, and the examples of the docstrings.
"""

import ast
import configparser
import contextlib
import doctest
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import jax_von_mises
from docs import architecture, pages, results
from jax_von_mises.cli import commands as command_line
from tests import children

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
# Languages of blocks, in what is written behind the fence; directives are Sphinx's.
CODE, TEXT = ("python", "py", "sh", "console", "yaml"), ("text",)

# Code that a page shows of an example, whose own tests run it.
EXCERPT = re.compile(r"^<!-- made: code .*?^<!-- end -->$", re.M | re.S)
# Statements whose output stands behind them.
SHOWN = re.compile(r"^ *print\(.*\)  # (.+)$", re.M)

# A job script of a cluster, which is looked at as a whole.
JOB = "#SBATCH"
# What makes a run of `jax-von-mises` one that is only read: hours, or a bucket.
TOO_LONG = re.compile(r"1e1[0-9]|gs://|/shared/|10_000_000")
# What cannot be run here and is no program of ours.
FOREIGN = ("git", "cd", "source", "xprof", "nvidia-smi", "docker", "wget", "pytest")
# What runs here without being a program of ours.
COMPANIONS = ("dask", "until", "kill", "wait", "cmp", "ls", "export")


def blocks(page, *languages):
    """The blocks of a page in these languages, in order."""
    text = EXCERPT.sub("", PAGES[page].read_text(encoding="utf-8"))
    return [body for language, body in re.findall(r"^```(\S*)\n(.*?)^```$", text, re.M | re.S) if language in languages]


def lines(block):
    """The command lines of a block; of a transcript those behind the prompt."""
    entered = block.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in entered):
        entered = [line[2:] for line in entered if line.startswith("$ ")]
    return [line for line in entered if line.strip() and not line.startswith("#")]


def with_blocks(*languages):
    """Pages that have such blocks."""
    return [page for page in PAGES if blocks(page, *languages)]


def newcomers_first(pages):
    """Parameters of a test for these pages, of which ``make test`` runs the one that a newcomer reads first."""
    slow = pytest.mark.slow
    return [page if page == "README" else pytest.param(page, marks=slow) for page in pages]


def words(line):
    """The words of a command line, without what comes after it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    found = list(lexer)
    ends = (i for i, word in enumerate(found) if set(word) <= set(";&|<>"))
    return found[: next(ends, len(found))]


def runs(line):
    """Whether a line is one to run here."""
    first = words(line)[:1]
    if first == ["jax-von-mises"]:
        return not TOO_LONG.search(line)
    return first not in (["pip"], ["make"], ["./install_gpu.sh"], ["python"], *([name] for name in FOREIGN))


@pytest.fixture
def as_users_have_it(monkeypatch, tmp_path):
    """JAX with its usual promotion, an empty directory, and a home of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_every_block_is_of_a_kind_that_is_tested():
    for page, path in PAGES.items():
        languages = re.findall(r"^```([^\s`]+)$", path.read_text(encoding="utf-8"), re.M)
        unknown = {name for name in languages if name not in (*CODE, *TEXT) and not name.startswith("{")}
        assert not unknown, (page, unknown)


@pytest.mark.usefixtures("no_cache_afterwards", "as_users_have_it")
@pytest.mark.parametrize("page", newcomers_first(with_blocks("python")))
def test_python_runs(page):
    if page in ("runtime", "README"):
        pytest.importorskip("flatbuffers", reason="programs are exported with flatbuffers: the extra `export`")
    if page == "tour":
        pytest.importorskip("matplotlib", reason="the page draws a histogram")
    if page == "migration":
        pytest.importorskip("numpyro", reason="the page compares with NumPyro")
    space = {}
    for block in blocks(page, "python"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, f"{page}.md", "exec"), space)
        outputs = SHOWN.findall(block) if page in ("README", "tour") else ()
        for line, shown in zip(printed.getvalue().splitlines(), outputs, strict=False):
            assert agrees(line, shown), (page, line, shown)


def agrees(line, shown):
    """Whether a printed line is what the page shows: the same text up to an ellipsis, with the same numbers."""
    number = re.compile(r"-?\d+\.\d*(?:e-?\d+)?")
    start = shown.split("...")[0]
    words, values = number.sub("", line), [float(found) for found in number.findall(line)]
    given = [float(found) for found in number.findall(start)]
    # The last digits differ between processors.
    close = all(abs(value - each) <= 1e-4 * abs(each) for value, each in zip(values, given, strict=False))
    return close and "".join(words.split()).startswith("".join(number.sub("", start).split()))


@pytest.mark.slow
@pytest.mark.parametrize("page", with_blocks("py"))
def test_python_that_comes_first_runs(page, tmp_path, monkeypatch):
    """What must come before JAX starts is written as `py`, and runs in a process of its own."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "py"):
        assert "configure" in block or "jax.config" in block
        children.run(block, JAX_PLATFORMS=None)


PAGES_THAT_RUN = [
    page
    for page in with_blocks("sh", "console")
    if any(runs(line) for block in blocks(page, "sh", "console") if JOB not in block for line in lines(block))
]


@pytest.mark.parametrize("page", newcomers_first(PAGES_THAT_RUN))
def test_commands_run(page, tmp_path):
    """All of a page in one directory; `jax-von-mises` is what is tested here, installed or not."""
    program = tmp_path / "bin" / "jax-von-mises"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m jax_von_mises "$@"\n')
    program.chmod(0o755)
    (program.parent / "dask").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dask "$@"\n')
    (program.parent / "dask").chmod(0o755)
    found = [line for block in blocks(page, "sh", "console") if JOB not in block for line in lines(block)]
    script = "\n".join(line for line in found if runs(line))
    if ".zarr" in script:
        pytest.importorskip("tensorstore", reason="stores are written through TensorStore: the extra `storage`")
    if page == "tour":
        # The page has written this file before, from Python.
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
    """All command lines of all pages, as (page, words): of shells, and of a list in YAML."""
    for page in PAGES:
        for block in blocks(page, "sh", "console"):
            yield from ((page, words(line)) for line in lines(block) if words(line))
        for block in blocks(page, "yaml"):
            for listed in re.findall(r"command: \[(.*?)\]", block, re.S):
                yield page, [word.strip().strip('"') for word in listed.split(",")]


def help_of(module):
    """What a program of the repository says of its options."""
    found = importlib.import_module(module)
    if hasattr(found, "__path__"):
        found = importlib.import_module(f"{module}.__main__")
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        found.main(["--help"])
    return printed.getvalue()


def test_commands_are_understood():
    """Those that cannot be run here too: by the parser of the program, or by what it says of its options."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = set(setup["options.extras_require"])
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    seen = {}
    for page, found in commands():
        name, options = found[0], [word.split("=")[0] for word in found[1:] if word.startswith("--")]
        seen[name] = seen.get(name, 0) + 1
        where = f"{page}: {' '.join(found)}"
        if name in ("jax-von-mises", "srun") and "jax-von-mises" in found:
            given = command_line.make_parser().parse_args(found[found.index("jax-von-mises") + 1 :])
            if given.command == "sample":
                command_line.check_name(given.out)
        elif name == "pip":
            asked = re.findall(r"(?:jax_von_mises|\.)\[([\w,]+)\]", " ".join(found))
            assert {extra for each in asked for extra in each.split(",")} <= extras, where
        elif name == "make":
            assert {word for word in found[1:] if "=" not in word} <= targets, where
        elif name == "./install_gpu.sh":
            script = (ROOT / "install_gpu.sh").read_text()
            assert all(option in script for option in options), where
        elif found[:2] == ["python", "-m"]:
            printed = help_of(found[2])
            assert all(option in printed for option in options), where
        else:
            assert name in (*FOREIGN, *COMPANIONS), where
    assert all(seen[name] >= 3 for name in ("jax-von-mises", "pip", "make", "python"))


def test_programs_named_in_the_text_are_there():
    """In `python -m` of running text too."""
    for page, path in PAGES.items():
        text = path.read_text(encoding="utf-8")
        for module in re.findall(r"`[^`\n]*python -m ([\w.]+)", text):
            assert importlib.util.find_spec(module), (page, module)
        for name in re.findall(r"`((?:docs|tests|benchmarks|jax_von_mises|tools)/[\w/.-]+)`", text):
            assert (ROOT / name).exists(), (page, name)


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
    found = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted
    assert not found.failed


def test_job_script_is_a_shell_script():
    (script,) = (block for block in blocks("many-machines", "sh") if JOB in block)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_picture_of_the_architecture_has_every_folder():
    package = ROOT / "jax_von_mises"
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert folders == set(architecture.layers()) - {"arguments", "environment"}
    assert "sampler" in architecture.modules("sampling")
    assert all(architecture.purpose(layer).endswith(".") for layer in architecture.layers())


def test_the_gallery_has_every_example():
    page = PAGES["gallery"].read_text(encoding="utf-8")
    names = pages.examples()
    assert len(names) == 7
    for name in names:
        assert f"({name.replace('_', '-')}.md)" in page
        shown = PAGES[name.replace("_", "-")].read_text(encoding="utf-8")
        assert f"_static/{name}.svg" in shown
        assert f"made: output {name}" in shown


def test_pages_show_the_committed_results_and_examples():
    """Otherwise: `python -m docs.pages`."""
    pytest.importorskip("matplotlib", reason="the tables are made by the programs that draw: the extra `bench`")
    parts = results.parts()
    old = [path.name for path in PAGES.values() if pages.filled(text := path.read_text("utf-8"), parts) != text]
    assert not old, "run python -m docs.pages"
    assert pages.notebook(PAGES["tour"].read_text(encoding="utf-8")) == pages.NOTEBOOK.read_text(encoding="utf-8")


def test_links_lead_to_files():
    """Of Markdown, and of pictures: within the repository, as a code host shows it."""
    for page, path in PAGES.items():
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
            assert "://" in target or (path.parent / target).exists(), (page, target)


def test_the_citation_has_the_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", text, re.M) == [jax_von_mises.__version__]


def test_what_the_readme_says_of_results():
    """What stands outside of its tables, which are made of the results."""
    text = PAGES["README"].read_text(encoding="utf-8")
    found = results.load()
    speed, grids = found[results.MACHINE], found[f"grids-{results.MACHINE}"]
    assert f"{results.plots.machine_text(speed['environment'])}".split(",")[0] in text
    counts = {
        case["count"] for case in speed["cases"] if case["group"] in ("one", "array", "cdf", "log_prob", "gradient")
    }
    assert {f"2<sup>{count.bit_length() - 1}</sup>" for count in counts} == set(re.findall(r"2<sup>\d+</sup>", text))
    errors = {
        row["peer"]: row["largest"]
        for row in speed["errors"]
        if row["task"] == "log_prob" and row["concentration"] == 1e7
    }
    assert errors["torch"] > 0.5
    assert errors["ours"] < 4e-7
    assert "its relative error is 1, where ours is below 4e-7" in text.replace("\n", " ")
    ratios = [case["results"]["normal"]["ratio"] for case in grids["cases"] if re.search("4x32|philox", case["name"])]
    assert len(ratios) == 3
    assert all(0.9 < ratio < 1.3 for ratio in ratios)


def reference():
    """Return the full name of each entry of the reference pages, in order."""
    names = []
    for page, path in PAGES.items():
        if page.startswith("api-"):
            entries = re.findall(r"(currentmodule|autofunction|autoclass):: ([\w.]+)", path.read_text(encoding="utf-8"))
            for kind, name in entries:
                if kind == "currentmodule":
                    module = name
                else:
                    names.append(name if "." in name else f"{module}.{name}")
    return names


@pytest.mark.parametrize("module", ["__init__.py", "runtime/__init__.py", "numpyro.py", "dask.py"])
def test_the_reference_has_every_public_name(module):
    # As text: NumPyro and Dask need not be installed.
    text = (ROOT / "jax_von_mises" / module).read_text(encoding="utf-8")
    public = set(ast.literal_eval(re.search(r"^__all__ = (\[.*?\])", text, re.M | re.S)[1])) - {"runtime"}
    place = ".".join(["jax_von_mises", *Path(module).with_suffix("").parts]).removesuffix(".__init__")
    shown = set(reference()) | {"jax_von_mises.initialize_compilation_cache"}
    assert {f"{place}.{name}" for name in public} <= shown
    listed = set(re.findall(r"`(?:[\w.]+\.)?(\w+)", PAGES["functions"].read_text(encoding="utf-8")))
    # Classes of results are not in the tables.
    assert {name for name in public if name[0].islower() or module != "runtime/__init__.py"} <= listed


def test_the_reference_is_divided_by_theme():
    names, pages_of_reference = reference(), {page for page in PAGES if page.startswith("api-")}
    assert len(names) == len(set(names))
    overview = PAGES["functions"].read_text(encoding="utf-8")
    assert pages_of_reference == set(re.findall(r"\((api-[\w-]+)\.md", overview))
    assert max(len(re.findall("auto(?:function|class)", PAGES[page].read_text())) for page in pages_of_reference) <= 20
