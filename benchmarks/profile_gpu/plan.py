"""How much is measured: on a CPU and on a GPU, quickly and in full."""

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["SECTIONS", "Plan", "make"]

# In the order of the report. Each is the name of a section, and what it is about.
SECTIONS = {
    "compile": "Compiling against running",
    "roofline": "Roofline of each stage",
    "batch": "Angles in one call",
    "memory": "Memory against the size of a call",
    "donation": "Donation and reuse of buffers",
    "prefetch": "Prefetch to the host",
    "transfer": "Transfer against compute",
    "precision": "Precision: speed, and what the law loses",
    "keys": "Implementations of keys",
    "devices": "Devices",
    "trace": "Trace",
    "log": "What JAX compiled",
    "accuracy": "Accuracy beside speed",
}


class Plan(NamedTuple):
    """Sizes of all that is measured; numbers are of angles where nothing else is said."""

    mode: str
    platform: str
    rounds: int  # turns of each competitor
    laps: int  # rounds of calls whose parts are timed one by one
    folder: Path  # where trace and log go
    count: int  # of one call that is to show the speed, not the overhead
    compiled: tuple[int, ...]
    firsts: int  # first calls of each of them
    sweep: tuple[int, ...]
    memory: tuple[int, ...]
    batch: int
    batches: int  # in a stream
    moved: tuple[int, ...]
    chain: int  # elements of the arithmetic that measures a ceiling
    steps: int  # operations on each of them, one after the other
    draws: int  # that accuracy is judged by
    tail_points: int
    peers: tuple[str, ...] | None = None  # all
    keys: tuple[str, ...] = ("threefry2x32", "threefry4x32", "philox2x32", "philox4x32", "rbg", "unsafe_rbg")
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16", "float64")
    stages: tuple[str, ...] | None = None  # all
    virtual_devices: int = 0  # in a child process, where this one has a single CPU device; 0 for as many as cores
    concentration: float = 5.0

    @property
    def on_gpu(self):
        """Whether JAX computes on a GPU."""
        return self.platform == "gpu"


def powers(first, last, step):
    """Powers of two."""
    return tuple(2**i for i in range(first, last + 1, step))


def make(quick, platform, folder):
    """The `Plan` of one run."""
    # A GPU draws in the time of a launch what a CPU takes a millisecond for.
    more = 0 if platform == "cpu" else 4
    common = dict(mode="quick" if quick else "full", platform=platform, folder=Path(folder), chain=2 ** (18 + 2 * more))
    common |= dict(virtual_devices=min(4, os.cpu_count() or 1))
    if quick:
        return Plan(
            rounds=5,
            laps=15,
            count=2 ** (20 + more),
            compiled=(2**10, 2**18),
            firsts=3,
            sweep=powers(10, 22 + more, 3),
            memory=powers(14, 22 + more, 4),
            batch=2 ** (18 + more),
            batches=8,
            moved=powers(10, 22 + more, 4),
            steps=256,
            draws=2**19,
            tail_points=60,
            **common,
        )
    return Plan(
        rounds=31,
        laps=41,
        count=2 ** (22 + more),
        compiled=powers(10, 22, 4),
        firsts=5,
        sweep=powers(8, 24 + more, 2),
        memory=powers(12, 24 + more, 2),
        batch=2 ** (20 + more),
        batches=16,
        moved=powers(8, 24 + more, 2),
        steps=256,
        draws=2**22,
        tail_points=200,
        **common,
    )
