"""The numbers behind the findings, as rows of text. What is too noisy says so in place of a number."""

from typing import NamedTuple

from benchmarks.profile_gpu import findings
from benchmarks.text import time_text
from jax_von_mises.streams.checkpoint import readable

__all__ = ["NOISY", "Table", "of_section"]

NOISY = "too noisy"


class Table(NamedTuple):
    """A table: its caption, the names of the columns, and rows of text."""

    caption: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def of_section(name, data):
    """The tables of one section; none for one that failed."""
    return [] if "error" in data else list(TABLES[name](data))


def seconds(result):
    """Median seconds of one call."""
    if "failed" in result:
        return "failed"
    return NOISY if result["wide"] else time_text(result["median"])


def rate(result):
    """Rate of a result."""
    if "failed" in result:
        return "failed"
    return NOISY if result["wide"] else findings.rate(result["rate"])


def compared(result):
    """Ratio of a comparison."""
    return {"noisy": NOISY, "missing": "-"}.get(result["state"]) or f"{result['ratio']:.2f}"


def size(value):
    """Bytes for a reader."""
    return "-" if value is None else readable(value)


def compiling(data):
    """Stages of compiling, and calls."""
    yield Table(
        "One call with and without jit, medians of several first calls and of the calls after them",
        (
            "angles",
            "route",
            "trace",
            "lower",
            "compile",
            "call",
            "no jit: first call",
            "no jit: call",
            "pays from call",
        ),
        [
            (
                f"{row['count']:,}",
                row["method"],
                *(seconds(row["firsts"][stage]) for stage in ("trace", "lower", "compile")),
                seconds(row["jit"]),
                seconds(row["firsts"]["plain"]),
                seconds(row["plain"]),
                NOISY if row["noisy"] else str(row["pays_from"] or "never"),
            )
            for row in data["rows"]
        ],
    )


def per_element(amount, result):
    """An amount for each element."""
    value = amount / result["count"]
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 0.05 else "0"


def roofline(data):
    """Stages and ceilings."""
    yield Table(
        "What the ceilings are measured by: the best of each kind, in the fastest quarter of its turns",
        ("", "time", "GB/s", "G floating-point operations/s", "G integer operations/s"),
        [probe_row(probe) for probe in data["probes"].values()],
    )
    yield Table(
        "Stages: operations and bytes for one element",
        ("stage", "of its bound", "bound by", "rate", "time", "floats", "integers", "functions", "bytes"),
        [stage_row(stage) for stage in data["stages"].values()],
    )


def probe_row(probe):
    """One program that measures a ceiling."""
    if "failed" in probe:
        return (probe["label"], seconds(probe), "-", "-", "-")
    rates = (probe.get(name, 0) / probe["quartiles"][0] / 1e9 for name in ("bytes", "floats", "integers"))
    return (probe["label"], seconds(probe), *(f"{value:.3g}" for value in rates))


def stage_row(stage):
    """One stage."""
    if "failed" in stage:
        return (stage["label"], "failed", *["-"] * 7)
    mark = "" if stage["whole"] else " or more"  # where branches or loops leave it open
    share = NOISY if stage["wide"] else "-" if stage["share"] is None else f"{stage['share']:.0%}"
    return (
        stage["label"],
        share,
        stage["bound_by"] or "-",
        rate(stage),
        seconds(stage),
        per_element(stage["floats"], stage) + mark,
        per_element(stage["integers"], stage) + mark,
        per_element(stage["transcendentals"], stage),
        per_element(stage["bytes"], stage) if "bytes" in stage else "-",
    )


def batch(data):
    """Rates by size."""
    lines = data["lines"]
    yield Table(
        "Rate against the angles in one call",
        ("angles", *(f"{method} route" for method in lines)),
        [(f"{count:,}", *(rate(line[place]) for line in lines.values())) for place, count in enumerate(data["sizes"])],
    )


def memory(data):
    """Bytes by size."""
    yield Table(
        "Memory of one call",
        ("angles", "route", "result", "more on the way", "seen beyond what there was"),
        [
            (
                f"{row['count']:,}",
                row["method"],
                size(row["output_bytes"]),
                size(row["temporary_bytes"]),
                size(row["seen_bytes"]),
            )
            for row in data["rows"]
        ],
    )


def donation(data):
    """Both ways."""
    yield Table(
        f"A stream of {data['batches']} batches of {data['batch']:,} angles ({readable(data['batch_bytes'])} each)",
        ("", "rate", "places in memory", "seen beyond what there was"),
        [
            (result["label"], rate(result), str(result["buffers"]), size(result["seen_bytes"]))
            for result in data["results"].values()
        ],
    )


def prefetch(data):
    """All ways."""
    yield Table(
        f"{data['batches']} batches of {data['batch']:,} angles, {data['sines']:.1f} sines of the host for each angle",
        ("", "rate"),
        [(result["label"], rate(result)) for result in data["results"].values()],
    )


def transfer(data):
    """Parts of a call."""
    names = {
        "dispatch": "until it returns",
        "compute": "until it is there",
        "to_host": "to the host",
        "to_device": "as many to the device",
    }
    yield Table(
        "Parts of one call",
        ("angles", *names.values()),
        [
            (f"{count:,}", *(seconds(row[name]) for name in names))
            for count, row in zip(data["sizes"], data["rows"], strict=True)
        ],
    )


def precision(data):
    """Speed and losses."""
    yield Table(
        f"{data['count']:,} angles",
        ("", "bytes", "rate", "ratio"),
        [
            (name, str(result["itemsize"]), rate(result), compared(result["compare"]))
            for name, result in data["results"].items()
        ],
    )
    yield Table(
        f"What is left of the law in {data['draws']:,} draws",
        ("", "concentration", "distinct values", "lost by rounding", "off where it rounds", "chance allows"),
        [
            (
                loss["dtype"],
                f"{loss['concentration']:g}",
                f"{loss['distinct']:,}",
                *(f"{loss[name]:.1e}" for name in ("step", "fair", "noise")),
            )
            for loss in data["losses"]
        ],
    )


def keys(data):
    """Speed of keys."""
    rows = [(name, rate(each), compared(each["compare"])) for name, each in data["results"].items()]
    rows += [(name, "not there", reason) for name, reason in data["missing"].items()]
    yield Table(f"{data['count']:,} angles, table route", ("key", "rate", f"times {data['usual']}"), rows)


def devices(data):
    """Rates of devices."""
    yield Table(
        f"{data['count']:,} angles over devices ({data['kind']})",
        ("", "rate", "times one device"),
        [(each["label"], rate(each), compared(each["compare"])) for each in data["results"].values()],
    )


def trace(data):
    """The longest operations."""
    yield Table(
        f"The longest operations of {data['calls']} calls of {data['count']:,} angles",
        ("operation", "program", "times", "seconds"),
        [
            (each["operation"], each["program"], f"{each['calls']:,}", time_text(each["seconds"]))
            for each in data["longest"]
        ],
    )


def log(data):
    """Programs by step."""
    yield Table(
        f"Programs compiled; the log of {data['lines']} lines is {data['file']} beside this page",
        ("step", "programs", "XLA's seconds"),
        [
            (
                step,
                ", ".join(each["program"] for each in programs) or "none",
                time_text(sum(each["seconds"] for each in programs)) if programs else "-",
            )
            for step, programs in data["programs"].items()
        ],
    )


def accuracy(data):
    """Peers by what they draw."""
    labels = data["labels"]
    distinct = {row["peer"]: f"{row['distinct']:,}" for row in data["distinct"]}
    p_values = {(shape["peer"], shape["concentration"]): shape["p_value"] for shape in data["shapes"]}
    columns = list(dict.fromkeys(k for _, k in p_values))
    tails = {(tail["peer"], tail["concentration"]): tail["worst"] for tail in data["drawn_tails"]}
    deep = list(dict.fromkeys(k for _, k in tails))

    def cell(found, peer, k, form):
        return form.format(found[peer, k]) if (peer, k) in found else "-"

    yield Table(
        f"Speed, and {data['draws']:,} draws against the law: the p of the shape, standard errors of the worst tail",
        (
            "",
            "rate",
            "distinct values at 1e7",
            *(f"shape, k={k:g}" for k in columns),
            *(f"tail, k={k:g}" for k in deep),
        ),
        [
            (
                label,
                "not here" if peer in data["missing"] else rate(data["speed"][peer]),
                distinct.get(peer, "-"),
                *(cell(p_values, peer, k, "{:.2g}") for k in columns),
                *(cell(tails, peer, k, "{:.1f}") for k in deep),
            )
            for peer, label in labels.items()
        ],
    )


TABLES = {
    "compile": compiling,
    "roofline": roofline,
    "batch": batch,
    "memory": memory,
    "donation": donation,
    "prefetch": prefetch,
    "transfer": transfer,
    "precision": precision,
    "keys": keys,
    "devices": devices,
    "trace": trace,
    "log": log,
    "accuracy": accuracy,
}
