"""Define the sections of the report, with their measurements, tables and pictures."""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.profile_gpu import accuracy, calls, programs, roofline

__all__ = ["SECTIONS", "Column", "Section"]


class Column(NamedTuple):
    """A column of a table: its heading, the field of the rows, and the format of its values in `report.FORMATS`."""

    heading: str
    field: str
    form: str = "text"


RATE = Column("rate, M/s", "rate", "rate")
TIME = Column("time", "seconds", "time")
ANGLES = Column("angles", "count", "count")


class Section(NamedTuple):
    """A section: its title, description, measurement and columns, and its picture as (kind, axis label)."""

    title: str
    about: str
    measure: Callable
    columns: tuple[Column, ...]
    picture: tuple[str, str] | None = None


RATES = "million angles per second"

SECTIONS = {
    # Memory comes first, since a device reports only its highest peak so far, and later sections use more.
    "memory": Section(
        "Memory",
        "Memory of one call: its result, the temporary memory of the compiled program, and the measured increase. On a "
        "CPU the measured increase can be too small, because a process reuses freed memory.",
        calls.memory,
        (
            Column("", "line"),
            ANGLES,
            Column("result", "result", "bytes"),
            Column("temporary", "temporary", "bytes"),
            Column("measured", "seen", "bytes"),
        ),
        ("bytes", "memory"),
    ),
    "compile": Section(
        "Compilation",
        "The stages of a first call, measured after all compiled programs have been discarded.",
        programs.compiling,
        (Column("", "line"), ANGLES, TIME),
        ("times", "milliseconds"),
    ),
    "sizes": Section(
        "Angles per call",
        "Small calls are mostly overhead. Beyond a certain size, larger calls need more memory and are not faster.",
        calls.sizes,
        (Column("", "line"), ANGLES, TIME, RATE),
        ("rates by size", RATES),
    ),
    "roofline": Section(
        "Roofline",
        "The ceilings of this device, and how close each stage of a draw comes to them. A stage moves its arguments, "
        "its results and twice its temporary arrays, and performs the operations that XLA counts. Its bound is the "
        "longer of the times that the memory traffic and the operations would take at the ceilings. Its share is the "
        "bound divided by the measured time. The share is approximate, because XLA does not distinguish integer from "
        "floating-point operations and does not count table look-ups.",
        roofline.roofline,
        (
            Column("", "line"),
            Column("share of bound", "share", "share"),
            Column("bound by", "bound_by"),
            RATE,
            TIME,
            Column("operations per element", "operations", "per element"),
            Column("bytes per element", "bytes", "per element"),
        ),
        ("shares", "share of the bound"),
    ),
    "transfer": Section(
        "Transfer",
        "The three stages of a call: until it returns (dispatch), until the angles are ready (compute), and until "
        "the host has them (to_host). If device and host share one memory, nothing is copied.",
        calls.transfer,
        (Column("", "line"), ANGLES, TIME),
        ("times by size", "microseconds"),
    ),
    "streams": Section(
        "Streams",
        "A stream of batches; the host computes the mean direction of each batch. With donate=True, a batch reuses the "
        "memory of an earlier one; with prefetch_to_host, the copy to the host runs in the background.",
        calls.streams,
        (Column("", "line"), RATE),
        ("rates", RATES),
    ),
    "dtypes": Section(
        "Dtypes",
        "bfloat16 and float16 angles are computed in float32 and rounded once, which leaves fewer distinct values. "
        "float64 needs JAX_ENABLE_X64=1.",
        calls.dtypes,
        (Column("", "line"), RATE, Column("draws", "count", "count"), Column("distinct values", "distinct", "count")),
        ("rates", RATES),
    ),
    "keys": Section(
        "Keys",
        "The key implementation generates the random words. For a single concentration, they take most of the "
        "operations.",
        calls.implementations,
        (Column("", "line"), RATE),
        ("rates", RATES),
    ),
    "devices": Section(
        "Devices",
        "One draw over several devices, with the same number of angles on each.",
        calls.devices,
        (Column("devices", "line"), ANGLES, RATE),
        ("rates", RATES),
    ),
    "trace": Section(
        "Trace",
        "The longest operations of a few draws. The report's folder trace/ holds the complete trace: open its "
        "perfetto_trace.json.gz at ui.perfetto.dev, or run `xprof --logdir trace` (pip install xprof).",
        programs.trace,
        (Column("operation", "line"), Column("calls", "calls", "count"), Column("total", "total", "time")),
    ),
    "accuracy": Section(
        "Accuracy",
        "Errors of float32 angles at tail probabilities from 1/2 down to 2^-33, as a share of the guaranteed error (a "
        "relative error of 2e-6 in the tail probability, or 4 units in the last place of the angle). The words are not "
        "random, but chosen to give these probabilities.",
        accuracy.accuracy,
        (Column("", "line"), Column("largest error, share of the guarantee", "worst", "share")),
        ("errors", "share of the guaranteed error"),
    ),
}
