"""Turn committed benchmark results into Markdown for the pages (see `docs.pages`)."""

import json
import statistics
from pathlib import Path

from benchmarks import first_calls, results
from benchmarks.exactness import report as exactness
from benchmarks.peers import (
    ALONE,
    CUPY,
    KERNELS,
    NORMAL,
    NORMAL_ALONE,
    NUMPY,
    NUMPYRO,
    SCIPY,
    TFP,
    TORCH,
)
from benchmarks.results import FEWER, MISSING, OURS, power, table, value_text
from benchmarks.text import number, time_text

__all__ = ["RESULTS", "load", "part", "programs"]

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
PROGRAMS = Path(__file__).parent.parent / "tools" / "gpu_programs.json"
# The machine whose results the README shows.
MACHINE = "cpu-2-cores"
SHORT = {
    NORMAL: "`normal`",
    "jax.random.truncated_normal": "`truncated_normal`",
}
# The table at the top of the README: a heading for each case, and the peers, of which each cell shows the fastest.
HEADLINE = {
    ("circle", "κ = 5"): "draws, one κ",
    ("arrays", "κ from 0.01 to 10,000"): "draws, a κ each",
    ("float64", "κ from 0.01 to 10,000"): "the same in float64",
    ("functions", "`log_prob`, κ from 0.01 to 10,000"): "`log_prob`, a κ each",
    ("startup", "draws, 1,000"): "first call, 1,000 draws",
}
PEERS = {
    "`normal`": (NORMAL,),
    "NumPyro,<br>TFP": (NUMPYRO, TFP),
    "NumPy,<br>SciPy,<br>PyTorch": (NUMPY, SCIPY, TORCH),
}


# The table of the results on a GPU.
ON_GPU = {
    ("circle", "κ = 5"): "draws, one κ",
    ("arrays", "κ from 0.01 to 10,000"): "draws, a κ each",
    ("float64", "κ = 5"): "draws, one κ, float64",
    ("float64", "κ from 0.01 to 10,000"): "draws, a κ each, float64",
    ("gradients", "κ = 5"): "gradient in κ, one κ",
    ("gradients", "κ from 0.01 to 10,000"): "gradient in κ, a κ each",
    ("sphere", "d = 3, a concentration each"): "directions, d = 3, a κ each",
    ("sphere", "d = 10, a concentration each"): "directions, d = 10, a κ each",
    ("sphere", "d = 10, float64"): "directions, d = 10, float64",
    ("calls", "1,000 in a step of a jitted loop"): "1,000 in a step of a jitted loop",
    ("calls", "eager call of 1,000"): "eager call of 1,000",
}
GPU_PEERS = {
    "`normal`": (NORMAL, NORMAL_ALONE),
    TFP: (TFP,),
    TORCH: (TORCH,),
    CUPY: (CUPY,),
    KERNELS: (KERNELS,),
}


def load(machine=MACHINE):
    """Return the results of a machine."""
    return results.of(RESULTS / f"{machine}.csv")


def machine_text(head):
    """Return the machine, the date and the versions of some results in a line."""
    card = "" if head["platform"] == "cpu" else f"{head['device']}; "
    return f"*{card}{head['processor']}; {head['versions']}; package tree {head['tree'][:12]}; {head['date']}.*"


def ratio(row):
    """Return the ratio of a row as Markdown, with its interval on a second line; in bold if the peer is faster."""
    if row is None or row.ratio is None:
        return MISSING
    if not row.clear:
        return "about<br>the same"
    middle, low, high = (
        number(value, 2) for value in (row.ratio, row.ratio_low, row.ratio_high)
    )
    shown = f"**{middle}**" if row.ahead else middle
    return shown + ("" if low == middle == high else f"<br><small>{low}–{high}</small>")


def folded(head, lines):
    """Return a table with a column for each peer that has a value in at least half of the lines that have any.

    `lines` are pairs of the first cells of a line, under `head`, and the values of its peers. The values of the other
    peers are in the last column, with their names.
    """
    some = sum(bool(values) for _, values in lines)
    peers = dict.fromkeys(peer for _, values in lines for peer in values)
    wide = [
        peer for peer in peers if 2 * sum(peer in values for _, values in lines) >= some
    ]
    rest = [peer for peer in peers if peer not in wide]
    rows = []
    for first, values in lines:
        others = (
            f"{peer} {values[peer].replace('<br>', ' ')}"
            for peer in rest
            if peer in values
        )
        last = ["<br>".join(others) or MISSING] * bool(rest)
        rows.append([*first, *(values.get(peer, MISSING) for peer in wide), *last])
    shown = table(
        [*head, *(f"/ {peer}" for peer in wide), *["/ others"] * bool(rest)], rows
    )
    return shown.replace("---:|\n", "---|\n", 1) if rest else shown  # text may wrap


def chosen(found, cases, peers):
    """Return a table with a line for each of some cases, and the ratio to the fastest of the peers of each name."""
    rows = {(row.group, row.case, row.peer): row for row in found.rows}
    lines = []
    for case, heading in cases.items():
        values = {}
        for name, names in peers.items():
            its = [rows[*case, peer] for peer in names if (*case, peer) in rows]
            its = [row for row in its if row.ratio is not None]
            if its:
                values[name] = ratio(min(its, key=lambda row: row.ratio))
        lines.append(([heading, value_text(rows[*case, OURS])], values))
    return folded(["", "ours"], lines)


def headline(found):
    """Return the table at the top of the README."""
    return chosen(found, HEADLINE, PEERS)


def gpu(found):
    """Return the table of the results on a GPU."""
    return chosen(found, ON_GPU, GPU_PEERS)


def programs():
    """Return the table of the programs that ``python -m tools.gpu_programs`` compiles and counts."""
    counts = json.loads(PROGRAMS.read_text(encoding="utf-8"))
    columns = {
        "kernels": "kernels of all angles",
        "all launches": "kernels",
        "bytes moved": "bytes moved an angle",
        "temporary bytes": "temporary bytes an angle",
        "PTX instructions": "instructions an angle",
    }
    lines = [
        [
            name,
            *(
                f"{count[column]:g}" if column in count else ""
                for column in columns.values()
            ),
        ]
        for name, count in counts.items()
    ]
    return table(["per angle, pair or direction", *columns], lines)


def of_first_calls(path):
    """Return the table of the first calls of each class's methods, the class with the slowest one first."""
    _, rows = first_calls.read(path)
    by_class = {}
    for name, method, _, multiple in rows:
        by_class.setdefault(name, []).append((float(multiple), method))
    lines = []
    for name, calls in by_class.items():
        slowest = ", ".join(
            f"`{method}` {multiple:.2g}" for multiple, method in calls[:3]
        )
        middle = statistics.median(multiple for multiple, _ in calls)
        lines.append([f"`{name}`", str(len(calls)), f"{middle:.2g}", slowest])
    return table(["", "methods", "median", "slowest"], lines)


def expected(found):
    """Return what a reader should expect of a draw like the one on the front page."""
    rows = {(row.group, row.case): row for row in found.rows if row.peer == OURS}

    def million(group, case):
        return time_text(1e6 / rows[group, case].value)

    each = "κ from 0.01 to 10,000"
    return (
        "A draw like the one on the front page, a million float32 angles with one concentration, takes "
        f"{million('circle', 'κ = 5')} on these two cores, after a first call of "
        f"{time_text(rows['startup', 'draws, $2^{20}$'].value)}. With a concentration for each angle, it takes "
        f"{million('arrays', each)} in float32, and {million('float64', each)} in float64."
    )


def slower(found):
    """Return a table with the case of each group in which another library is ahead by most."""
    rows = {(row.group, row.case, row.peer): row for row in found.rows}
    ahead = [row for row in found.rows if row.ahead and row.peer not in BOUNDS]
    lines = []
    for group in dict.fromkeys(row.group for row in ahead):
        if group != "accuracy":
            worst = min(
                (row for row in ahead if row.group == group), key=lambda row: row.ratio
            )
            ours = value_text(rows[group, worst.case, OURS])
            case = f"{TITLES.get(group, group)}: {worst.case}"
            name = SHORT.get(worst.peer, worst.peer)
            lines.append([case, ours, name, ratio(worst)])
    return table(["", "ours", "faster", "ratio"], lines)


def compared(rows):
    """Return rows as a table of our value and of our ratio to each peer."""
    cases = dict.fromkeys(row.case for row in rows)
    ours = {row.case: row for row in rows if row.peer == OURS}
    counted = any(row.count != 1 for row in ours.values())
    lines = []
    for case in cases:
        values = {}
        for row in rows:
            if row.case == case and row.peer != OURS and row.ratio is not None:
                fewer = FEWER if row.count != ours[case].count else ""
                start, _, end = ratio(row).partition("<br>")
                text = (
                    f"{start}{fewer}<br>{end}"
                    if row.clear
                    else f"{start}<br>{end}{fewer}"
                )
                values[SHORT.get(row.peer, row.peer)] = text.removesuffix("<br>")
        lines.append(
            (
                [case, *[power(ours[case].count)] * counted, value_text(ours[case])],
                values,
            )
        )
    shown = folded(["", *["per call"] * counted, "ours"], lines)
    return shown + (f"\n\n{FEWER} fewer elements per call." if FEWER in shown else "")


def each_class(rows):
    """Return rows as a table with a line for each class, whose cells have our rate above its ratio to normal draws."""
    found = {}
    for row in rows:
        name, _, what = row.case.partition(", ")
        found.setdefault(name, {}).setdefault(what, {})[row.peer] = row
    columns = dict.fromkeys(
        what for its in found.values() for what in its if NORMAL in its[what]
    )
    lines = [
        [
            name,
            *(
                f"{value_text(its[what][OURS])}<br>{ratio(its[what][NORMAL]).replace('<br>', ' ')}"
                if what in its
                else MISSING
                for what in columns
            ),
        ]
        for name, its in found.items()
    ]
    return table(["", *columns], lines)


def errors(rows):
    """Return rows as a table for each quantity, with a line for each concentration and the value of each library."""
    quantities = {}
    for row in rows:
        quantities.setdefault(row.case.rsplit(", κ = ", 1)[0], []).append(row)
    tables = []
    for quantity, its in quantities.items():
        found = {(row.case, row.peer): row for row in its if row.value is not None}
        peers = dict.fromkeys(peer for _, peer in found)
        lines = [
            [
                f"κ = {case.rsplit(' = ', 1)[1]}",
                *(value_text(found.get((case, peer))) for peer in peers),
            ]
            for case in dict.fromkeys(row.case for row in its)
        ]
        head = [
            "",
            *("ours" if peer == OURS else SHORT.get(peer, peer) for peer in peers),
        ]
        tables.append(f"{quantity[0].upper()}{quantity[1:]}:\n\n{table(head, lines)}")
    return "\n\n".join(tables)


TITLES = {
    "circle": "one concentration",
    "arrays": "a concentration each",
    "calls": "small calls",
    "classes": "each class",
    "sphere": "directions",
    "startup": "first call",
}
# Peers that do only a part of the work, as a bound for its speed.
BOUNDS = (
    ALONE,
    NORMAL_ALONE,
    "sample_von_mises",
    "a plain write",
    "sample_batches alone",
)


def part(name, machine=MACHINE):
    """Return the Markdown of a part of a page.

    Parameters
    ----------
    name : str
        ``"machine"``, ``"headline"``, ``"slower"``, ``"expected"``, ``"gpu"``, ``"first-calls"``, ``"exactness"`` or a
        group of cases.
    machine : str
        The stem of the results' file.
    """
    if name == "first-calls":
        return of_first_calls(RESULTS / f"first-calls-{machine}.csv")
    if name == "exactness":
        return exactness.markdown(RESULTS / f"exactness-{machine}.csv")
    found = load(machine)
    if name == "machine":
        return machine_text(found.head)
    made = {"headline": headline, "slower": slower, "expected": expected, "gpu": gpu}
    if name in made:
        return made[name](found)
    rows = [row for row in found.rows if row.group == name]
    if not rows:
        raise ValueError(
            f"the results of {machine} have no group {name}; a page asks for it"
        )
    return {"accuracy": errors, "classes": each_class}.get(name, compared)(rows)
