"""Run code that may abort or hang, such as JAX with an invalid XLA flag, in a child process."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax

# -P keeps the working directory off the module path, so that a child imports the same modules as this process.
PYTHON = (sys.executable, "-P")

# A child may share a GPU with this process, so it must not reserve memory in advance.
MODEST = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# Longest timeout in seconds (23 days), since a wait for a pipe counts milliseconds in 31 bits.
LONGEST_WAIT = 2e6


class Ended(NamedTuple):
    """Result of a child: its exit code (None if it was killed at its timeout) and its output."""

    code: int | None
    out: str
    err: str


def environment(**changes: str | None) -> dict[str, str]:
    """Return the environment for a child that finds the same modules as this process.

    `changes` sets variables; None removes one.
    """
    # The folder that contains this package comes last, since other modules in it may shadow installed ones.
    path = [os.path.abspath(folder) for folder in sys.path if folder] + [str(Path(__file__).parents[2])]
    found: dict[str, str | None] = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), **changes}
    return {name: value for name, value in found.items() if value is not None}


def configuration() -> dict[str, str | None]:
    """Return the environment variables that give JAX in a child the configuration of this process."""
    config: Any = jax.config
    return {
        "JAX_PLATFORMS": config.jax_platforms or None,
        "JAX_NUM_CPU_DEVICES": str(config.jax_num_cpu_devices),
        "JAX_ENABLE_X64": str(bool(config.jax_enable_x64)),
        # With filtering, JAX ends a traceback with a note, where `reason` looks for the error.
        "JAX_TRACEBACK_FILTERING": "off",
        **MODEST,
    }


def run(*arguments: str, timeout: float, **changes: str | None) -> Ended:
    """Run Python with `arguments` and with `changes` to the environment, and wait until it ends."""
    return run_command(*PYTHON, *arguments, timeout=timeout, **changes)


def run_command(*command: str, timeout: float, **changes: str | None) -> Ended:
    """Run a command with `changes` to the environment, and wait until it ends."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**changes),
        text=True,
        errors="replace",
        start_new_session=os.name == "posix",
    )
    try:
        out, err = child.communicate(timeout=min(timeout, LONGEST_WAIT))
        return Ended(child.returncode, out, err)
    except subprocess.TimeoutExpired as late:
        # The output captured before the timeout is bytes, even with `text=True`.
        captured = (late.stdout, late.stderr)
        out, err = (text.decode(errors="replace") if isinstance(text, bytes) else text or "" for text in captured)
        return Ended(None, out, err)
    finally:
        if child.returncode is None:  # also if this process was interrupted
            _kill(child)


def _kill(child: subprocess.Popen[str]) -> None:
    """Kill a child and the processes that it started, without waiting for others that hold its pipes."""
    with contextlib.suppress(OSError):
        if os.name == "posix":
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def reason(ended: Ended) -> str:
    """Return the most informative line that a child printed before it failed."""
    lines = [line.strip() for line in ended.err.splitlines() if line.strip()]
    fatal = [line.split("] ", 1)[-1] for line in lines if re.match(r"F\d{4} ", line)]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    explained = [line for line in errors if ": " in line]  # some of JAX's assertions have no message
    return (fatal or explained or errors or lines or [f"exit code {ended.code}"])[-1][:300]
