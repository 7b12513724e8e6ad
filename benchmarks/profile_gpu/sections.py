"""The sections of the report: their measurements, tables and pictures."""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.profile_gpu import accuracy, calls, programs, roofline

__all__ = ["SECTIONS", "Column", "Section"]


class Column(NamedTuple):
    """A column of a table: its heading, the field of each row, and how a value is written (see `report.FORMATS`)."""

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
    # Memory comes first: a device reports its peak of all time, and later sections use more.
    "memory": Section(
        "Memory",
        "Memory of one call: the result, what the compiled program needs next to it, and what was seen to be taken "
        "(too little on a CPU, where a process uses freed memory again).",
        calls.memory,
        (
            Column("", "line"),
            ANGLES,
            Column("result", "result", "bytes"),
            Column("temporary", "temporary", "bytes"),
            Column("seen", "seen", "bytes"),
        ),
        ("bytes", "memory"),
    ),
    "compile": Section(
        "Compilation",
        "The stages of a first call, each time with nothing compiled before.",
        programs.compiling,
        (Column("", "line"), ANGLES, TIME),
        ("times", "milliseconds"),
    ),
    "sizes": Section(
        "Angles per call",
        "Small calls are mostly overhead; from some size on, more angles per call only need more memory.",
        calls.sizes,
        (Column("", "line"), ANGLES, TIME, RATE),
        ("rates by size", RATES),
    ),
    "roofline": Section(
        "Roofline",
        "Ceilings of this device, and how near each stage of a draw comes to them. A stage moves its arguments, its "
        "results and twice its temporaries, and does the operations that XLA counts; its bound is the longer of the "
        "two times at the ceilings. XLA counts no table look-up, and adds integer operations to those on floats: the "
        "share is a rough figure.",
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
        "The three stages of a call: until it returns, until the angles are computed, until the host has them (no copy "
        "where both share one memory).",
        calls.transfer,
        (Column("", "line"), ANGLES, TIME),
        ("times by size", "microseconds"),
    ),
    "streams": Section(
        "Streams",
        "A stream of batches, whose mean direction the host computes. With donate=True a batch takes the memory of an "
        "earlier one; with prefetch_to_host the copy to the host runs in the background.",
        calls.streams,
        (Column("", "line"), RATE),
        ("rates", RATES),
    ),
    "dtypes": Section(
        "Dtypes",
        "bfloat16 and float16 are computed in float32 and rounded once; fewer distinct values are left. float64 needs "
        "JAX_ENABLE_X64=1.",
        calls.dtypes,
        (Column("", "line"), RATE, Column("draws", "count", "count"), Column("distinct values", "distinct", "count")),
        ("rates", RATES),
    ),
    "keys": Section(
        "Keys",
        "The cipher of the key makes the random words, which are most of the work where one concentration is drawn.",
        calls.implementations,
        (Column("", "line"), RATE),
        ("rates", RATES),
    ),
    "devices": Section(
        "Devices",
        "One draw over several devices, with as many angles for each of them.",
        calls.devices,
        (Column("devices", "line"), ANGLES, RATE),
        ("rates", RATES),
    ),
    "trace": Section(
        "Trace",
        "The longest operations of a few draws. The folder trace/ next to this page holds the complete trace: open its "
        "perfetto_trace.json.gz at ui.perfetto.dev, or run `xprof --logdir trace` (pip install xprof).",
        programs.trace,
        (Column("operation", "line"), Column("calls", "calls", "count"), Column("total", "total", "time")),
    ),
    "accuracy": Section(
        "Accuracy",
        "Errors of float32 angles at tail probabilities from 1/2 down to 2^-33, as a share of the guaranteed error: a "
        "relative error of 2e-6 in the tail probability, or 4 units in the last place of the angle. Nothing is drawn: "
        "the words that give these probabilities are chosen.",
        accuracy.accuracy,
        (Column("", "line"), Column("largest error, share of the guarantee", "worst", "share")),
        ("errors", "share of the guaranteed error"),
    ),
}
