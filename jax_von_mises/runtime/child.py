"""Python processes beside this one, for what may abort or hang: a wrong XLA flag ends the process that reads it."""

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
    """How a child ended: its exit code (None if it was killed because its time was up) and what it said."""

    code: int | None
    out: str
    err: str


def environment(**changes):
    """The environment of a child that finds the modules that this process finds; a change to None removes."""
    # This package last: it may be found by the working directory alone, whose other modules a child leaves alone.
    path = [os.path.abspath(folder) for folder in sys.path if folder] + [str(Path(__file__).parents[2])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), **changes}
    return {name: value for name, value in found.items() if value is not None}


def configuration():
    """Variables by which JAX in a child starts as it is configured here, where it may have been changed since."""
    config = jax.config
    return {
        "JAX_PLATFORMS": config.jax_platforms or None,
        "JAX_NUM_CPU_DEVICES": str(config.jax_num_cpu_devices),
        "JAX_ENABLE_X64": str(bool(config.jax_enable_x64)),
        # Else JAX's tracebacks end in words on itself, where the reason should be.
        "JAX_TRACEBACK_FILTERING": "off",
        **MODEST,
    }


def run(*arguments, timeout, **changes):
    """Run Python with `arguments`, and wait for its end."""
    child = subprocess.Popen(
        [*PYTHON, *arguments],
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
        _kill(child)
        return Ended(None, _text(late.stdout), _text(late.stderr))
    except BaseException:  # an interrupt: nobody waits for it any more
        _kill(child)
        raise


def _kill(child):
    """End a child and what it has started, and do not wait for whoever else holds its pipes."""
    with contextlib.suppress(OSError):
        if os.name == "posix":
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()
    child.stdout.close()
    child.stderr.close()


def _text(said):
    """What had been read by the time the patience ended."""
    return (said or b"").decode(errors="replace") if not isinstance(said, str) else said


def reason(ended):
    """Why a child ended: the line of its words that says most."""
    lines = [line.strip() for line in ended.err.splitlines() if line.strip()]
    fatal = [line.split("] ", 1)[-1] for line in lines if re.match(r"F\d{4} ", line)]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    telling = [line for line in errors if ": " in line]  # JAX has assertions without a word
    return (fatal or telling or errors or lines or [f"exit code {ended.code}"])[-1][:300]
