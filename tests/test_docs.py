"""The pages: their code runs as it is printed, from top to bottom, with what it asserts."""

import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys

import pytest

from jax_von_mises import cli
from tests import children

ROOT = pathlib.Path(__file__).parent.parent
# Pages whose blocks are run. The others print parts of programs that tests of their own run.
PAGES = ("devices", "many-machines", "runtime", "streams")
# Written by files that the block itself does not have: a job script of a cluster.
NOT_HERE = ("#SBATCH",)


def blocks(page, language):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(found) == text.count(f"```{language}\n")
    return found


def commands(page):
    """The command lines of the page, as lists of words: of its shell blocks, and of a list in YAML."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if "jax-von-mises" in line:
                yield shlex.split(line[line.index("jax-von-mises") :].rstrip("& "))
    for block in blocks(page, "yaml"):
        for listed in re.findall(r"command: \[(.*?)\]", block, re.DOTALL):
            yield [word.strip().strip('"') for word in listed.split(",")]


@pytest.mark.usefixtures("no_cache_afterwards")
@pytest.mark.parametrize("page", PAGES)
def test_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {}
    for block in blocks(page, "python"):
        exec(compile(block, f"{page}.md", "exec"), space)


def test_configuration_runs(tmp_path):
    """What must come before JAX starts is written as `py`, and runs in a process of its own."""
    for block in blocks("runtime", "py"):
        assert "configure" in block
        children.run(block, JAX_PLATFORMS=None)


@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page, tmp_path):
    """Each shell block, in one empty directory; `jax-von-mises` is what is tested here, installed or not."""
    program = tmp_path / "bin" / "jax-von-mises"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m jax_von_mises "$@"\n')
    program.chmod(0o755)
    found = [block for block in blocks(page, "sh") if not any(mark in block for mark in NOT_HERE)]
    if not found:
        pytest.skip("the page has no commands")
    if any(".zarr" in block for block in found):
        pytest.importorskip("tensorstore", reason="stores are written through TensorStore: the extra `storage`")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = children.environment(PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    script = "\n".join(found).replace(":45000", f":{port}")
    done = subprocess.run(
        ["bash", "-eu", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["many-machines", "streams"])
def test_commands_are_understood(page):
    """Those of clusters too, which cannot be run here."""
    found = [words for words in commands(page) if words[0] == "jax-von-mises"]
    assert len(found) >= 3
    for words in found:
        options = cli.make_parser().parse_args(words[1:])
        if options.command == "sample":
            cli.check_name(options.out)


def test_job_script_is_a_shell_script():
    (script,) = (block for block in blocks("many-machines", "sh") if "#SBATCH" in block)
    assert shutil.which("bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
