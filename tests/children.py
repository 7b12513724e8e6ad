"""Run programs in separate Python processes that import the tested package, even if it is not installed."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import jax_von_mises

# Another process is still writing the entry.
CACHE_BUSY = "ignore:Error reading persistent compilation cache entry"
ROOT = Path(jax_von_mises.__file__).parent.parent


def environment(**changes):
    """Return the environment variables for a child process; variables set to None are removed.

    The child uses this process's compilation cache, unless it may be killed: then give JAX_COMPILATION_CACHE_DIR=None,
    since the cache keeps an entry that is cut off.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    changed = os.environ | {"PYTHONPATH": path} | changes
    if "JAX_COMPILATION_CACHE_DIR" not in changes and (cache := jax.config.jax_compilation_cache_dir):
        changed |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return {name: value for name, value in changed.items() if value is not None}


def own_mounts(place):
    """Return a command prefix that creates a private mount namespace; skip the test if mounting at `place` fails."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        subprocess.run([*unshare, "mount", "-t", "tmpfs", "tmpfs", place], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"users cannot mount a file system on this machine: {error}")
    return unshare


def fill_disk(file, spare=0):
    """Fill the disk with a file, except for `spare` bytes."""
    with open(file, "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            filler.truncate(filler.tell() - spare)


def run(program, *arguments, before=(), timeout=120, **changes):
    """Run a program with warnings as errors, assert that it succeeds, and return the lines that it printed.

    `before` is a command prefix.
    """
    done = subprocess.run(
        [*before, sys.executable, "-W", "error", "-W", CACHE_BUSY, "-c", program, *map(str, arguments)],
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def imported():
    """Return a `multiprocessing` context that starts processes with the package already imported."""
    context = multiprocessing.get_context("forkserver")
    # Import the package once, in the server, for all children. These imports must not start JAX's threads.
    context.set_forkserver_preload(["jax_von_mises.streams.writer", "zarr.codecs", "pytest"])
    return context


def forked(target, *arguments):
    """Start ``target(*arguments, pipe)`` in a process of `imported()`; return the process and our end of the pipe.

    The process must send a first message when it is ready; this function waits for that message.
    """
    context = imported()
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs))
    process.start()
    theirs.close()
    assert ours.poll(60), "the child did not start"
    ours.recv()
    return process, ours
