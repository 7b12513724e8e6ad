"""Make tables and pictures of the committed benchmark results for the pages (see `docs.pages`)."""

import json
from pathlib import Path

from benchmarks import accuracy, circular, plots, sphere, torus
from benchmarks.cases import CASES, TASKS
from benchmarks.exactness import __main__ as exactness
from benchmarks.exactness import pictures as exactness_pictures
from benchmarks.peers import LABELS, OURS, PEERS
from benchmarks.profile_gpu import pictures
from benchmarks.profile_gpu import report as profile
from benchmarks.profile_gpu.sections import SECTIONS
from benchmarks.startup import WAYS
from benchmarks.streaming import pictures as streaming_pictures
from benchmarks.text import NOISE, number

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
# The machine whose results the README shows.
MACHINE = "cpu-epyc-2-cores"
# Groups of cases that every run measures; the others belong to a grid.
USUAL = {case.group for case in CASES}
TITLES = {
    "sizes": "Angles per call",
    "concentrations": "Concentration",
    "dtypes": "Dtype",
    "keys": "Key implementation",
    "arrays": "A concentration for each angle",
    "functions": "Functions",
}
# A library counts as faster if our rate is below its rate by more than this fraction of its rate.
CLEARLY = 0.05
MISSING = "–"
# Peers that measure this package.
OWN = (OURS, "eager")
# Short headings of columns.
SHORT = {
    "normal": "normal",
    "jax_scipy": "JAX",
    "mkl": "mkl",
    "tfp": "TFP",
    "jax_von_mises": "ours",
    "sample_von_mises": "angles",
    "jax.random.normal": "normal",
    "the draw alone": "draw",
    "million per second": "M/s",
}


def count_text(count):
    """Format a number of angles; powers of two from 2^10 are written as powers."""
    power = count.bit_length() - 1
    return f"$2^{{{power}}}$" if count == 2**power and power >= 10 else f"{count:,}"


def table(head, rows):
    """Return a Markdown table whose first column is text and whose other columns are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def case_label(case):
    """Return the label of a case."""
    if case["group"] == "sizes":
        return count_text(case["count"])
    if case["group"] == "dtypes":
        return case["dtype"]
    if case["group"] == "keys":
        return f"`{case['key_impl']}`"
    if isinstance(case["concentration"], dict):
        return "κ for each angle"
    if case["group"] in ("one", "concentrations"):
        return f"κ = {case['concentration']:g}"
    if case["group"] == "functions":
        return f"`{case['task']}`, κ = {case['concentration']:g}, {case['dtype']}"
    wide = ", float64" if case["dtype"] == "float64" else ""
    return "one short call" if case["group"] == "small" else f"`{case['task']}`{wide}"


def rate_text(case, result):
    """Format the rate of a result with its unit."""
    unit = TASKS[case["task"]]
    return (
        f"{number(result['rate'] / unit.scale)} {'k' if unit.prefix == 'k' else 'M'}/s"
    )


def ratio_text(case, name):
    """Format the ratio of our rate to that of a peer, or mark it as noise if either rate varies too much."""
    result = case["results"].get(name)
    if result is None:
        return ""
    if result["wide"] or case["results"][OURS]["wide"]:
        return NOISE
    mark = "" if result["count"] == case["count"] else "†"
    text = f"{number(result['ratio'])}×{mark}"
    return f"**{text}**" if result["ratio"] < 1 - CLEARLY else text


def speed_table(cases):
    """Return a table of cases, with our rate and its ratio to the rate of each peer."""
    peers = [
        peer.name
        for peer in PEERS
        if peer.name not in OWN and any(peer.name in case["results"] for case in cases)
    ]
    eager = any("eager" in case["results"] for case in cases)
    rows = []
    for case in cases:
        ours = case["results"][OURS]
        first = NOISE if ours["wide"] else rate_text(case, ours)
        row = [case_label(case), first]
        if eager:
            result = case["results"].get("eager")
            row.append(
                ""
                if result is None
                else NOISE
                if result["wide"]
                else rate_text(case, result)
            )
        row += [ratio_text(case, name) for name in peers]
        rows.append(
            row
            if case["group"] == "sizes"
            else [row[0], count_text(case["count"]), *row[1:]]
        )
    sizes = cases[0]["group"] == "sizes"
    head = ["per call", "rate"] if sizes else ["", "per call", "rate"]
    head += ["no `jit`"] if eager else []
    return table(
        [*head, *(f"/ {SHORT.get(name, LABELS[name])}" for name in peers)], rows
    )


def speed_tables(result):
    """Return the tables of all cases of a result: draws, then functions, then the grids."""
    usual = [case for case in result["cases"] if case["group"] in USUAL]
    draws = [case for case in usual if case["task"] == "sample"]
    others = [case for case in usual if case["task"] != "sample"]
    texts = [
        f"**{title}**\n\n{speed_table(cases)}"
        for title, cases in (("Draws", draws), ("Functions", others))
        if cases
    ]
    for group, title in TITLES.items():
        cases = [case for case in result["cases"] if case["group"] == group]
        texts += [f"**{title}**\n\n{speed_table(cases)}"] if cases else []
    return "\n\n".join(texts)


def headline(result):
    """Return the table of the README, with a row for each kind of work that shows ranges over its cases."""
    peers = ("normal", "numpy", "numpyro", "tfp", "torch")
    stands_for = {"numpy": "scipy"}
    shown = {
        "draws, one κ": [case for case in result["cases"] if case["group"] == "one"],
        "draws, array of κ": [
            case for case in result["cases"] if case["group"] == "array"
        ],
    } | {
        f"`{task}`": [case for case in result["cases"] if case["group"] == task]
        for task in ("log_prob", "cdf")
    }
    shown["gradient in κ"] = [
        case for case in result["cases"] if case["group"] == "gradient"
    ]
    rows = []
    for label, cases in shown.items():
        steady = [case for case in cases if not case["results"][OURS]["wide"]]
        row = [label, between([case["results"][OURS]["rate"] / 1e6 for case in steady])]
        for peer in peers:
            others = [
                case["results"].get(peer, case["results"].get(stands_for.get(peer)))
                for case in steady
            ]
            row.append(
                between(
                    [
                        each["ratio"]
                        for each in others
                        if each is not None and not each["wide"]
                    ]
                )
            )
        rows.append(row)
    head = ["", "M/s", "`normal`", "NumPy, SciPy", "NumPyro", "TFP", "PyTorch"]
    return table(head, rows)


def between(values):
    """Format the range of values; return `MISSING` if there are none."""
    if not values:
        return MISSING
    low, high = (
        f"{value:.0f}" if value >= 10 else f"{value:.2g}"
        for value in (min(values), max(values))
    )
    return low if low == high else f"{low} to {high}"


def slower(speed, grids, startup, directions):
    """Return a table of the kinds of work in which a peer is faster, with the worst case of each kind."""
    worst = {}
    for case in [*speed["cases"], *grids["cases"]]:
        measured = case["results"]
        ours = measured[OURS]
        others = [
            name for name in measured if name not in OWN and not measured[name]["wide"]
        ]
        faster = [name for name in others if measured[name]["ratio"] < 1 - CLEARLY]
        kind = (
            case["task"],
            case["dtype"],
            case["group"] in USUAL | {"functions"} or case["name"],
        )
        if ours["wide"] or not faster:
            continue
        fastest = min(faster, key=lambda name: measured[name]["ratio"])
        ratio = measured[fastest]["ratio"]
        if kind in worst and worst[kind][0] <= ratio:
            continue
        label = {
            **dict.fromkeys(("sizes", "small"), f"draws, {case['count']:,} per call"),
            "keys": f"draws, {case['key_impl']} key",
            "truncated": f"`sample_truncated`, κ = {case['concentration']:g}",
        }.get(
            case["group"],
            f"`{case['task']}`, κ = {case['concentration']:g}, {case['dtype']}",
        )
        same_arc = case["group"] == "truncated" and fastest == "normal"
        peer = "jax.random.truncated_normal" if same_arc else LABELS[fastest]
        row = [label, rate_text(case, ours), peer, number(ratio) + "×"]
        worst[kind] = ratio, row
    rows = [row for _, row in worst.values()]
    (first, *_) = (task["ways"] for task in startup["tasks"].values())
    ours, normal = (first[name]["seconds"] for name in ("compile", "normal"))
    if normal < (1 - CLEARLY) * ours:
        rows.append(
            [
                "first call of a process",
                f"{ours * 1e3:.0f} ms",
                LABELS["normal"],
                f"{number(normal / ours)}×",
            ]
        )
    for case in directions["cases"]:
        rate, normal = (
            case["results"][name]["rate"]
            for name in ("jax_von_mises", "jax.random.normal")
        )
        if case["name"].startswith("directions") and rate < (1 - CLEARLY) * normal:
            rows.append(
                [
                    case["name"],
                    f"{number(rate / 1e6)} M/s",
                    LABELS["normal"],
                    f"{number(rate / normal)}×",
                ]
            )
    return table(["", "ours", "faster", "ratio"], rows)


def by_concentration(rows, cell):
    """Return a table with a row for each peer and a column for each concentration."""
    columns = list(dict.fromkeys(row["concentration"] for row in rows))
    lines = []
    for peer in dict.fromkeys(row["peer"] for row in rows):
        cells = {row["concentration"]: cell(row) for row in rows if row["peer"] == peer}
        lines.append([LABELS[peer], *(cells.get(k, "") for k in columns)])
    return table(["", *(f"κ = {k:g}" for k in columns)], lines)


def accuracy_tables(result):
    """Return tables of the distinct values and of the largest errors of all timed libraries."""
    counts = result["accuracy"]
    texts = (
        [f"**Distinct values of |x| in {counts[0]['draws']:,} float32 draws**"]
        if counts
        else []
    )
    texts += (
        [by_concentration(counts, lambda row: f"{row['distinct']:,}")] if counts else []
    )
    for error in accuracy.ERRORS:
        rows = [
            row
            for row in result["errors"]
            if (row["task"], row["measure"]) == (error.task, error.measure)
        ]
        if rows:
            texts.append(f"**Largest error, {error.label}**")
            texts.append(
                by_concentration(
                    rows,
                    lambda row: (
                        "not finite"
                        if row["largest"] is None
                        else f"{row['largest']:.1e}"
                    ),
                )
            )
    return "\n\n".join(texts)


def profile_sections(result, stem, names):
    """Return some sections of a profile as Markdown, with their tables and pictures."""
    quiet, texts = result["machine_state"]["quiet"], []
    for name in names:
        section, rows = SECTIONS[name], result["sections"][name]["rows"]
        texts += [f"### {section.title}", "", section.about, ""]
        if (
            section.picture is not None
            and len([row for row in rows if "failed" not in row]) > 1
        ):
            texts += [f"![{section.title}](_static/{stem}-{name}.svg)", ""]
        cells = [
            [text for text, _ in profile.cells(row, section.columns, quiet)]
            for row in rows
        ]
        texts += [table([column.heading for column in section.columns], cells), ""]
    return "\n".join(texts).rstrip()


def startup_table(result):
    """Return a table of times in milliseconds, with a row for each way to the first angles."""
    tasks, rows = result["tasks"].values(), []
    for way in WAYS:
        times = [task["ways"].get(way.name) for task in tasks]
        cells = (
            ""
            if each is None
            else NOISE
            if each["wide"]
            else f"{each['seconds'] * 1e3:.0f}"
            for each in times
        )
        rows.append([way.label, *cells])
    return table(["milliseconds", *(task["label"] for task in tasks)], rows)


def exactness_tables(result):
    """Return a table of distributions, each with its least likely test and its largest error of a tail probability."""
    lines = [
        "| distribution | angles | tests | least likely | p at most | largest error / bound |"
    ]
    lines.append("|---|---:|---:|---|---:|---:|")
    for name, shown, tests, least in exactness.by_distribution(result):
        worst = f"{max(shown['worst']['share']):.2f}" if "worst" in shown else MISSING
        lines.append(
            f"| {name} | {shown['angles']:,} | {tests} | {least['test']} | {least['p']:.2g} | {worst} |"
        )
    return "\n".join([*lines, "", f"{exactness.sentence(result)}."])


def words_table(result):
    """Return a table with a row for each stream of words."""
    lines = ["| words | bytes | tests | unusual | failed |", "|---|---:|---:|---|---:|"]
    for row in result["streams"]:
        unusual = "; ".join(row["unusual"]) or "none"
        cells = (f"$2^{{{row['power']}}}$", row["tests"], unusual, len(row["failed"]))
        lines.append(
            f"| {row['cipher']}, `{row['order']}` | "
            + " | ".join(map(str, cells))
            + " |"
        )
    return "\n".join(lines)


def summary_table(program, result):
    """Return the table of a benchmark program that has a function `summary`."""
    head, *rows = program.summary(result["cases"])
    return table([SHORT.get(each, each) for each in head], rows)


def machine(result):
    """Return a line with the machine, the versions and the kind of run of a result."""
    found, rounds = result["environment"], result["options"]["rounds"]
    versions = ", ".join(
        f"{name} {version}" for name, version in found["versions"].items()
    )
    run = f"{result['options']['mode']} run, {rounds} round{'s' * (rounds != 1)}"
    run += ", 512-bit vectors and huge pages" if result["options"].get("tuned") else ""
    return f"*{plots.machine_text(found)}; Python {found['python']}; {versions}; commit {found['commit']}; {run}.*"


def load():
    """Return all committed results by the stems of their file names."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("*.json"))
    }


def parts():
    """Return the Markdown of all parts of pages that show results, by name."""
    results, texts = load(), {}
    for stem, result in results.items():
        head, program = machine(result), result.get("program", "performance_benchmark")
        if program == "performance_benchmark":
            texts[stem] = [head, speed_tables(result)]
            if result["accuracy"] and not result["options"].get("tuned"):
                texts[f"{stem}-accuracy"] = [head, accuracy_tables(result)]
        elif program == "profile_gpu":
            texts[f"{stem}-accuracy"] = [
                head,
                profile_sections(result, stem, ["accuracy"]),
            ]
            texts[stem] = [
                head,
                profile_sections(
                    result, stem, [name for name in SECTIONS if name != "accuracy"]
                ),
            ]
        else:
            tables = {
                "startup": startup_table,
                "exactness": exactness_tables,
                "words": words_table,
                "sphere": lambda result: summary_table(sphere, result),
                "circular": lambda result: summary_table(circular, result),
                "torus": lambda result: summary_table(torus, result),
                "streaming": lambda _: "",
            }
            texts[stem] = [head, tables[program](result)]
    speed = results[MACHINE]
    texts["headline"] = [headline(speed)]
    texts["slower"] = [
        slower(
            speed,
            *(results[f"{name}-{MACHINE}"] for name in ("grids", "startup", "sphere")),
        )
    ]
    return {
        name: "\n\n".join(block for block in blocks if block)
        for name, blocks in texts.items()
    }


# Functions that draw the results, by program.
PICTURES = {
    "performance_benchmark": plots.main,
    "streaming": streaming_pictures.main,
    "exactness": exactness_pictures.main,
}


def draw(folder):
    """Draw all results into `folder`."""
    for stem, result in load().items():
        program = result.get("program", "performance_benchmark")
        if program == "profile_gpu":
            for name, (svg, _) in pictures.draw(result).items():
                (folder / f"{stem}-{name}.svg").write_bytes(svg)
        elif (
            program in PICTURES
            and result.get("accuracy", True)
            and not result["options"].get("tuned")
        ):
            assert (
                PICTURES[program](
                    [
                        str(RESULTS / f"{stem}.json"),
                        "--out",
                        str(folder / f"{stem}.svg"),
                    ]
                )
                == 0
            )
