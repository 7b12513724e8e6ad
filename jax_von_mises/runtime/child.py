"""Run in another Python process what may abort or hang: a wrong XLA flag ends the process that reads it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax

# -P: modules come from where this process has them, never from the working directory.
PYTHON = (sys.executable, "-P")

# Two processes have one GPU only if neither takes all its memory at once.
MODEST = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# Seconds, 23 days: pipes are waited for in milliseconds of 31 bits.
LONGEST_WAIT = 2e6


class Ended(NamedTuple):
    """How a child ended: its exit code (None if it was killed because its time was up) and what it printed."""

    code: int | None
    out: str
    err: str


def environment(**changes):
    """Return the environment of a child that finds the modules that this process finds; a change to None removes."""
    # This package comes last: it may be in the working directory, whose other modules a child must not import.
    path = [os.path.abspath(folder) for folder in sys.path if folder] + [str(Path(__file__).parents[2])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), **changes}
    return {name: value for name, value in found.items() if value is not None}


def configuration():
    """Return the variables with which JAX in a child starts as it is configured here."""
    config = jax.config
    return {
        "JAX_PLATFORMS": config.jax_platforms or None,
        "JAX_NUM_CPU_DEVICES": str(config.jax_num_cpu_devices),
        "JAX_ENABLE_X64": str(bool(config.jax_enable_x64)),
        # Otherwise JAX's tracebacks end with a note on filtering, where `reason` looks for the reason.
        "JAX_TRACEBACK_FILTERING": "off",
        **MODEST,
    }


def run(*arguments, timeout, before=(), **changes):
    """Run Python with `arguments`, under the command `before` if there is one, and wait for its end."""
    child = subprocess.Popen(
        [*before, *PYTHON, *arguments],
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
        said = (late.stdout, late.stderr)  # so far, and as bytes even of a process that is read as text
        return Ended(None, *(text.decode(errors="replace") if isinstance(text, bytes) else text or "" for text in said))
    finally:
        if child.returncode is None:  # also where this process was interrupted
            _kill(child)


def _kill(child):
    """End a child and what it has started, and do not wait for others that hold its pipes."""
    with contextlib.suppress(OSError):
        if os.name == "posix":
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()
    child.stdout.close()
    child.stderr.close()


def reason(ended):
    """Return why a child ended: the line of its messages that says most."""
    lines = [line.strip() for line in ended.err.splitlines() if line.strip()]
    fatal = [line.split("] ", 1)[-1] for line in lines if re.match(r"F\d{4} ", line)]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    telling = [line for line in errors if ": " in line]  # JAX has assertions without a message
    return (fatal or telling or errors or lines or [f"exit code {ended.code}"])[-1][:300]
