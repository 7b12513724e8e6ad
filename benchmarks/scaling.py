"""Time and cost of drawing very many angles on many processes, from rates that were measured or are assumed.

``python -m benchmarks.scaling`` prints a table for 1, 8 and 1024 GPUs. With ``--from FILE``, a result of
``benchmarks.streaming``, the parameters of that machine are read from a part of its measurements, and the others are
predicted and printed beside what was measured: so the reader sees what the model is worth before he reads the table.

The model: all processes start and compile; then each draws its share while what it drew before is on its way to the
storage, block by block, and after each block its record is replaced. So ::

    drawing   = N / min(P draw, draw_shared)
    moving    = N bytes / min(P link, shared)
    recording = b record + record_growth b (b - 1) / 2,    b = ceil(N / block / P) blocks of a process
    time      = start_up + compile + max(drawing, moving + recording)
    cost      = P time price

A record is a text with a line for each block that is done, so recording grows with the square of their number.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.files import read_json
from benchmarks.text import table, time_text
from jax_von_mises.streams import writer

__all__ = ["Prediction", "Rates", "comparison", "fitted", "main", "predict"]

BYTES = 4  # of a float32

CEILING = "ceiling read off compiled code, not measured on a GPU"
ASSUMED = "ASSUMED"
GIVEN = "given"

DRAWING = "drawing"
RECORDING = "recording"
OWN_STORAGE = "storage: each process"
SHARED_STORAGE = "storage: shared"


class Rates(NamedTuple):
    """What the time depends on."""

    draw: float  # angles a second of one process that has its device for itself
    link: float  # bytes a second from one process to the storage, its checksum included
    shared: float  # bytes a second that the storage takes from all processes
    draw_shared: float = math.inf  # angles a second of all processes, where they share devices or cores
    start_up: float = 0.0  # seconds until JAX is loaded
    compile: float = 0.0  # seconds
    record: float = 0.0  # seconds for the record after a block
    record_growth: float = 0.0  # seconds more for each block that is in it
    block: int | None = None  # angles; by default what the writer takes for so many


class Prediction(NamedTuple):
    """Seconds for each part of the work, seconds for all, and what bounds them."""

    drawing: float
    moving: float
    recording: float
    seconds: float
    bound: str


def predict(angles, processes, rates, size=BYTES):
    """Time to draw and store `angles`, of `size` bytes each, with `processes`."""
    drawing = angles / min(processes * rates.draw, rates.draw_shared)
    moving = angles * size / min(processes * rates.link, rates.shared)
    blocks = math.ceil(math.ceil(angles / (rates.block or writer.block_angles(angles))) / processes)
    recording = blocks * rates.record + rates.record_growth * blocks * (blocks - 1) / 2
    seconds = rates.start_up + rates.compile + max(drawing, moving + recording)
    if drawing >= moving + recording:
        bound = DRAWING
    elif recording > moving:
        bound = RECORDING
    else:
        bound = SHARED_STORAGE if processes * rates.link > rates.shared else OWN_STORAGE
    return Prediction(drawing, moving, recording, seconds, bound)


def cost(processes, seconds, price):
    """What `processes` cost at `price` an hour each."""
    return processes * seconds / 3600 * price


def in_series(*rates):
    """Rate of steps that follow each other."""
    return 1 / sum(1 / rate for rate in rates)


def checked(result):
    """Return `result` if the model can be tried on it."""
    if result["program"] != "streaming":
        raise KeyError("program 'streaming'")
    if result["format"] != 1:
        raise ValueError(f"format {result['format']} is not 1")
    for section in ("disk", "record", "processes"):
        if section not in result["sections"]:
            raise ValueError(f"it was measured without --sections {section}")
    if not result["sections"]["processes"]["results"]:
        raise ValueError('it has no Zarr store: pip install -e ".[storage]" in the clone where it is measured')
    return result


def fitted(result):
    """Read the parameters of a machine from a part of a result of ``benchmarks.streaming``.

    Drawing alone, the plain write, the records, and what one process does to a Zarr store. The processes of one
    machine share its cores, so all together draw no faster than one; and where these cores are the device, all together
    store no faster than one, which keeps all of them at work.
    """
    sections = result["sections"]
    disk, record = sections["disk"]["results"], sections["record"]["results"]["zarr"]
    together = sections["processes"]
    phases = together["results"]["1"]["seconds"]
    blocks = math.ceil(together["count"] / together["block"])
    each, growth = record["seconds_each"], record["seconds_each_per_block_done"]
    steady = float(np.median(phases["steady"]))
    recording = each * blocks + growth * blocks * (blocks - 1) / 2
    # What is left of its time without the records. Where drawing is slower than the storage that is the rate of
    # drawing, and no process alone could show more.
    link = together["count"] * BYTES / max(steady - recording, 1e-9)
    plain = disk["plain"]["rate"] * BYTES
    return Rates(
        draw=disk["draw"]["rate"],
        draw_shared=disk["draw"]["rate"],
        link=link,
        shared=min(plain, link) if result["environment"]["platform"] == "cpu" else plain,
        start_up=float(np.median(phases["start_up"])),
        compile=float(np.median(phases["compile"])),
        record=each,
        record_growth=growth,
        block=together["block"],
    )


class Point(NamedTuple):
    """Seconds that were measured, and what the model says."""

    what: str
    measured: float
    predicted: float

    @property
    def error(self):
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1


def comparison(result, rates):
    """What was measured and not used for `rates`, beside what they predict."""
    sections = result["sections"]
    disk, record, together = sections["disk"], sections["record"]["results"], sections["processes"]
    count, block = disk["count"], result["options"]["block"]
    begun = rates._replace(start_up=0.0, compile=0.0)
    # One process of the package knows no bound here but drawing, the plain write and its records.
    npy = begun._replace(
        link=math.inf,
        shared=disk["results"]["plain"]["rate"] * BYTES,
        record=record["npy"]["seconds_each"],
        record_growth=record["npy"]["seconds_each_per_block_done"],
        block=block,
    )

    def measured(name):
        return float(np.median(disk["results"][name]["seconds"]))

    points = [Point("1 process, .npy", measured("npy"), predict(count, 1, npy).seconds)]
    if "zarr" in disk["results"]:
        points.append(Point("1 process, Zarr, timed again", measured("zarr"), predict(count, 1, begun).seconds))
    for parts, found in together["results"].items():
        if parts == "1":
            continue  # the parameters are from there
        phases = found["seconds"]
        steady = float(np.median(phases["steady"]))
        angles, many = together["count"], int(parts)
        points.append(Point(f"{parts} processes, Zarr", steady, predict(angles, many, begun).seconds))
        whole = float(np.median(np.sum([phases[name] for name in ("start_up", "compile", "steady")], axis=0)))
        points.append(Point(f"{parts} processes, Zarr, with start-up", whole, predict(angles, many, rates).seconds))
    return points


def number(value, unit):
    """A value with an SI prefix; seconds in the unit that suits them."""
    if unit == "s":
        return span(value)
    if math.isinf(value):
        return "no limit"
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            # "5 GB/s", but "5 G angles/s".
            return (
                f"{value / scale:.4g} {prefix}{unit}"
                if unit.startswith("B")
                else f"{value / scale:.4g} {prefix} {unit}"
            )
    return f"{value:.4g} {unit}"


def span(seconds):
    """Seconds, or a longer unit where that is easier to grasp."""
    for unit, scale in (("years", 365.25 * 86400), ("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return time_text(seconds) if seconds > 0 else "0 s"


def fit_text(result, rates):
    """Lay out the parameters of a machine, and the model beside what was measured."""
    rows = [
        ("drawing, all processes", number(rates.draw, "angles/s"), "drawing alone"),
        ("storage, one process", number(rates.link, "B/s"), "1 process, Zarr"),
        ("storage, shared", number(rates.shared, "B/s"), "the plain write; on a CPU 1 process, Zarr, if less"),
        ("start-up", time_text(rates.start_up), "1 process, Zarr"),
        ("compiling", time_text(rates.compile), "1 process, Zarr"),
        ("record after a block", time_text(rates.record), "records"),
        ("and for each block in it", span(rates.record_growth), "records"),
    ]
    found = [("", "measured", "predicted", "error")]
    for point in comparison(result, rates):
        times = time_text(point.measured), time_text(point.predicted)
        found.append((point.what, *times, f"{point.error:+.0%}"))
    return (
        f"Parameters of the machine that was measured, and from what\n{table(rows)}\n\n"
        f"What was measured and not used for them, beside the model\n{table(found)}"
    )


def scaling_table(angles, processes, rates, price):
    """Lay out time and cost as text."""
    rows = [("angles", "bytes", "GPUs", "time", "GPU hours", "cost", "bound by", "drawing only", "cost")]
    for count in angles:
        for many in processes:
            found = predict(count, many, rates)
            only = rates.start_up + rates.compile + found.drawing
            rows.append(
                (
                    f"{count:.4g}".replace("e+", "e"),
                    number(count * BYTES, "B"),
                    f"{many:,}",
                    span(found.seconds),
                    f"{many * found.seconds / 3600:,.4g}",
                    f"${cost(many, found.seconds, price):,.2f}",
                    found.bound,
                    span(only),
                    f"${cost(many, only, price):,.2f}",
                )
            )
    return table(rows)


def again_text(draw, read, whose, marked=""):
    """Tell whether drawing again or reading back is faster."""
    ratio = draw * BYTES / read
    rates = f"drawing {number(draw * BYTES, 'B/s')}, reading {number(read, 'B/s')}{marked}"
    if ratio > 1:
        return f"  {whose}: do not store what the key can give again, drawing is {ratio:.3g} times as fast ({rates})"
    return f"  {whose}: store what is used again, reading is {1 / ratio:.3g} times as fast as drawing ({rates})"


def above_zero(text):
    """Read a number above zero."""
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number above 0")
    return value


def whole(text):
    """Read a whole number of at least 1, such as 1e12."""
    value = above_zero(text)
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return int(value)


class Parameter(NamedTuple):
    """An assumption of the table, which an argument replaces."""

    what: str
    unit: str
    default: float
    source: str = ASSUMED


PARAMETERS = {
    "draw_rate": Parameter("drawing, one GPU (H100, threefry key)", "angles/s", 250e9, CEILING),
    "storage": Parameter("storage, one process (a local NVMe disk)", "B/s", 2e9),
    "shared": Parameter("storage, all processes", "B/s", 100e9),
    "checksum": Parameter("checksum before writing, one core", "B/s", 1e9),
    "start_up": Parameter("start-up", "s", 60.0),
    "compile": Parameter("compiling", "s", 10.0),
    "record": Parameter("record after a block", "s", 0.01),
    "record_growth": Parameter("and for each block in it", "s", 1e-6),
    "price": Parameter("a GPU for an hour", "dollars", 3.0),
}


def from_result(result):
    """What a measured machine tells of the host's part, whatever its device."""
    record = result["sections"]["record"]
    return {
        "checksum": record["checksum_rate"],
        "record": record["results"]["zarr"]["seconds_each"],
        "record_growth": record["results"]["zarr"]["seconds_each_per_block_done"],
    }


def assumptions(given, result):
    """Value and source of each parameter of the table: given, measured in `result`, or assumed."""
    measured = {} if result is None else from_result(result)
    found = {}
    for name, parameter in PARAMETERS.items():
        if getattr(given, name) is not None:
            found[name] = getattr(given, name), GIVEN
        elif name in measured:
            found[name] = measured[name], "measured on the host of that result"
        else:
            found[name] = parameter.default, parameter.source
    return found


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0])
    made.add_argument("--from", dest="result", type=Path, metavar="FILE", help="file written by streaming --json")
    made.add_argument("--angles", type=whole, nargs="+", default=[10**12, 10**15], help="1e12 1e15")
    made.add_argument("--gpus", type=whole, nargs="+", default=[1, 8, 1024], help="1 8 1024")
    made.add_argument("--block", type=whole, help="angles in a block: what the writer takes")
    for name, parameter in PARAMETERS.items():
        option, text = f"--{name.replace('_', '-')}", f"{parameter.what}, {parameter.unit}: {parameter.default:g}"
        made.add_argument(option, type=above_zero, metavar="NUMBER", help=text)
    return made


def main(arguments=None):
    """Print the model beside the measurements and the table; returns the exit code."""
    given = parser().parse_args(arguments)
    result = None
    if given.result is not None:
        try:
            result = checked(read_json(given.result))
            rates = fitted(result)
            print(fit_text(result, rates) + "\n")
        except KeyError as error:
            print(f"{given.result} is no result of streaming: it has no {error}", file=sys.stderr)
            return 1
        except (TypeError, AttributeError, IndexError) as error:
            print(f"{given.result} is no result of streaming: it is made otherwise ({error})", file=sys.stderr)
            return 1
        except (OSError, ValueError) as error:
            print(f"cannot use {given.result}: {error}", file=sys.stderr)
            return 1
    found = assumptions(given, result)
    value = {name: number for name, (number, _) in found.items()}
    # A process takes the checksum of a block and then writes it.
    link = in_series(value["storage"], value["checksum"])
    gpu = Rates(
        draw=value["draw_rate"],
        link=link,
        shared=value["shared"],
        start_up=value["start_up"],
        compile=value["compile"],
        record=value["record"],
        record_growth=value["record_growth"],
        block=given.block,
    )
    rows = [(PARAMETERS[name].what, number(x, PARAMETERS[name].unit), source) for name, (x, source) in found.items()]
    blocks = {given.block or writer.block_angles(angles) for angles in given.angles}
    print(f"float32 angles on GPUs, a process each, in blocks of {' or '.join(f'{b:,}' for b in sorted(blocks))}.")
    print("Parameters:")
    print(table(rows))
    print(f"  so one process stores {number(link, 'B/s')}: it takes the checksum of a block, and then writes it\n")
    print(scaling_table(given.angles, given.gpus, gpu, value["price"]))
    if any(predict(n, p, gpu).bound == RECORDING for n in given.angles for p in given.gpus):
        print("  Bound by recording: there are too many blocks. Take larger ones, here --block, there block_rows=.")
    print("\nWhether to store at all")
    print(again_text(gpu.draw, value["storage"], "one GPU", "; as above, reading assumed as fast as writing"))
    if result is not None:
        disk = result["sections"]["disk"]["results"]
        print(again_text(disk["draw"]["rate"], disk["read"]["rate"] * BYTES, "the machine that was measured"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
