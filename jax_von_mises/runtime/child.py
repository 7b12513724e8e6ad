"""Python processes beside this one, for what may abort or hang: a wrong XLA flag ends the process that reads it."""

import os
import subprocess
import sys
from typing import NamedTuple

import jax

# -P: modules come from where this process has them, never from the working directory.
PYTHON = (sys.executable, "-P")

# Two processes have one GPU only if neither takes all its memory at once.
MODEST = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


class Ended(NamedTuple):
    """How a child ended: its exit code (None if it was killed because its time was up) and what it said."""

    code: int | None
    out: str
    err: str


def environment(**changes):
    """The environment of a child that finds the modules that this process finds; a change to None removes."""
    path = os.pathsep.join(filter(None, sys.path))
    found = {**os.environ, "PYTHONPATH": path, **changes}
    return {name: value for name, value in found.items() if value is not None}


def configuration():
    """Variables by which JAX in a child starts as it is configured here, where it may have been changed since."""
    config = jax.config
    return {
        "JAX_PLATFORMS": config.jax_platforms or None,
        "JAX_NUM_CPU_DEVICES": str(config.jax_num_cpu_devices),
        "JAX_ENABLE_X64": str(bool(config.jax_enable_x64)),
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
    )
    with child:
        try:
            out, err = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
            return Ended(None, out, err)
        except BaseException:  # an interrupt: nobody waits for it any more
            child.kill()
            raise
    return Ended(child.returncode, out, err)
