"""Draws the committed results of the benchmarks when the documentation is built: pictures, and tables in Markdown."""

import json
import shutil
from pathlib import Path

from benchmarks import accuracy, plots, sphere, torus
from benchmarks.cases import CASES, TASKS
from benchmarks.exactness import __main__ as exactness
from benchmarks.exactness import pictures as exactness_pictures
from benchmarks.peers import LABELS, PEERS
from benchmarks.profile_gpu import pictures
from benchmarks.profile_gpu import report as profile
from benchmarks.profile_gpu.sections import SECTIONS
from benchmarks.startup import WAYS
from benchmarks.streaming import pictures as streaming_pictures
from benchmarks.text import NOISE

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
MADE = HERE / "_generated"


# Titles of the grids, and of the cases that every run has.
USUAL = {case.group for case in CASES}
TITLES = {
    "sizes": "By the size of a call",
    "concentrations": "By concentration",
    "dtypes": "By dtype",
    "keys": "By the implementation of the key",
    "arrays": "A concentration for each angle, by size",
    "functions": "Functions",
}


def speed_tables(result):
    """A row for each case, a column for each peer: the rate, and how many times ours is it. Draws, then the rest."""
    usual = [case for case in result["cases"] if case["group"] in USUAL]
    draws = [case for case in usual if case["task"] == "sample"]
    others = [case for case in usual if case["task"] != "sample"]
    texts = [speed_table(cases) for cases in (draws, others) if cases]
    for group, title in TITLES.items():
        cases = [case for case in result["cases"] if case["group"] == group]
        texts += [f"**{title}**", speed_table(cases)] if cases else []
    return "\n\n".join(texts)


def speed_table(cases):
    """Lay out some cases."""
    shown = [peer.name for peer in PEERS if any(peer.name in case["results"] for case in cases)]
    lines = ["| | " + " | ".join(LABELS[name] for name in shown) + " |", "|---|" + "---:|" * len(shown)]
    for case in cases:
        unit = TASKS[case["task"]]
        cells = []
        for name in shown:
            found = case["results"].get(name)
            if found is None:
                cells.append("")
            elif found["wide"]:
                cells.append(NOISE)
            elif name == shown[0]:
                cells.append(f"**{number(found['rate'] / unit.scale)}**")
            else:
                told = "ratio" in found and not case["results"][shown[0]]["wide"]
                fewer = "" if found["count"] == case["count"] else f", {found['count']:,}"
                cells.append(
                    number(found["rate"] / unit.scale) + (f" ({number(found['ratio'])}×{fewer})" if told else "")
                )
        what = "" if case["name"] == case["task"] else f"{case['name']}, "
        task = "" if case["task"] == "sample" else f"{case['task']}, "
        lines.append(f"| {task}{what}{case['count']:,}; {unit.unit} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def number(value):
    """Three digits, and no powers of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def by_concentration(rows, cell):
    """A row for each peer, a column for each concentration."""
    columns = list(dict.fromkeys(row["concentration"] for row in rows))
    lines = ["| | " + " | ".join(f"κ = {k:g}" for k in columns) + " |", "|---|" + "---:|" * len(columns)]
    for peer in dict.fromkeys(row["peer"] for row in rows):
        found = {row["concentration"]: cell(row) for row in rows if row["peer"] == peer}
        lines.append(f"| {LABELS[peer]} | " + " | ".join(found.get(k, "") for k in columns) + " |")
    return "\n".join(lines)


def accuracy_tables(result):
    """Distinct values and largest errors of all who were timed."""
    counts = result["accuracy"]
    texts = [f"**Distinct values of |x| in {counts[0]['draws']:,} float32 draws**"] if counts else []
    texts += [by_concentration(counts, lambda row: f"{row['distinct']:,}")] if counts else []
    for error in accuracy.ERRORS:
        rows = [row for row in result["errors"] if (row["task"], row["measure"]) == (error.task, error.measure)]
        if rows:
            texts.append(f"**Largest error, {error.label}**")
            texts.append(
                by_concentration(rows, lambda row: "not finite" if row["largest"] is None else f"{row['largest']:.1e}")
            )
    return "\n\n".join(texts)


def profile_sections(result, stem, names):
    """Write the pictures of these sections of a profile, and return them with their tables."""
    result = {**result, "sections": {name: result["sections"][name] for name in names}}
    drawn, quiet = pictures.draw(result), result["machine_state"]["quiet"]
    texts = []
    for name, data in result["sections"].items():
        section = SECTIONS[name]
        texts += [f"### {section.title}", "", section.about, ""]
        if name in drawn:
            file = f"{stem}-{name}.svg"
            (MADE / file).write_bytes(drawn[name][0])
            texts += [f"![{section.title}]({file})", ""]
        texts.append("| " + " | ".join(column.heading for column in section.columns) + " |")
        texts.append("|---|" + "---:|" * (len(section.columns) - 1))
        for row in data["rows"]:
            texts.append("| " + " | ".join(text for text, _ in profile.cells(row, section.columns, quiet)) + " |")
        texts.append("")
    return "\n".join(texts)


def startup_table(result):
    """A row for each way to the first angles, in milliseconds."""
    tasks = result["tasks"]
    lines = [
        "| first angles in a fresh process, ms | " + " | ".join(task["label"] for task in tasks.values()) + " |",
        "|---|" + "---:|" * len(tasks),
    ]
    for way in WAYS:
        cells = []
        for task in tasks.values():
            found = task["ways"].get(way.name)
            cells.append("" if found is None else NOISE if found["wide"] else f"{found['seconds'] * 1e3:.0f}")
        lines.append(f"| {way.label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def exactness_tables(result):
    """Lay out a row for each distribution: its least likely test, and the largest error of all tail probabilities."""
    lines = ["| distribution | angles | tests | least likely | p at most | largest error, share of the promise |"]
    lines.append("|---|---:|---:|---|---:|---:|")
    for name, shown, tests, least in exactness.by_distribution(result):
        worst = f"{max(shown['worst']['share']):.2f}" if "worst" in shown else "-"
        lines.append(f"| {name} | {shown['angles']:,} | {tests} | {least['test']} | {least['p']:.2g} | {worst} |")
    return "\n".join([*lines, "", f"{exactness.sentence(result)}."])


def words_table(result):
    """A row for each stream of words."""
    lines = ["| words | bytes | tests | called unusual | failed |", "|---|---:|---:|---|---:|"]
    for row in result["streams"]:
        unusual = "; ".join(row["unusual"]) or "none"
        cells = (f"$2^{{{row['power']}}}$", row["tests"], unusual, len(row["failed"]))
        lines.append(f"| {row['cipher']}, `{row['order']}` | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def case_table(result):
    """A row for each case of directions, or of pairs."""
    head, *rows = {"sphere": sphere, "torus": torus}[result["program"]].summary(result["cases"])
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def machine(result):
    """The machine and the versions of a result, in a line."""
    found = result["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    run = f"{result['options']['mode']} run, {result['options']['rounds']} rounds"
    return f"{plots.machine_text(found)}; Python {found['python']}; {versions}; commit {found['commit']}; {run}."


# What the README shows; hosts of repositories draw nothing, so these are kept beside it.
README = {"cpu-epyc-2-cores": "speed-and-accuracy", "streaming-cpu-epyc-2-cores": "memory-of-a-stream"}


def write(name, lines):
    """Write one piece of Markdown that a page includes."""
    (MADE / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make(app=None):
    """Write pictures and tables of all results."""
    MADE.mkdir(exist_ok=True)
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        program = result.get("program", "performance_benchmark")
        text = [machine(result), ""]
        if program == "performance_benchmark":
            if result["accuracy"]:
                assert plots.main([str(path), "--out", str(MADE / f"{path.stem}.svg")]) == 0
                text += [f"![Speed and accuracy]({path.stem}.svg)", ""]
                write(f"{path.stem}-accuracy", [machine(result), "", accuracy_tables(result)])
            text += [speed_tables(result)]
        elif program == "profile_gpu":
            write(f"{path.stem}-accuracy", [*text, profile_sections(result, path.stem, ["accuracy"])])
            text += [profile_sections(result, path.stem, [name for name in SECTIONS if name != "accuracy"])]
        elif program == "streaming":
            assert streaming_pictures.main([str(path), "--out", str(MADE / f"{path.stem}.svg")]) == 0
            text += [f"![Memory and rates]({path.stem}.svg)"]
        elif program == "startup":
            text += [startup_table(result)]
        elif program == "exactness":
            assert exactness_pictures.main([str(path), "--out", str(MADE / f"{path.stem}.svg")]) == 0
            text += [f"![Bins, tails, errors and tests]({path.stem}.svg)", "", exactness_tables(result)]
        elif program == "words":
            text += [words_table(result)]
        elif program in ("sphere", "torus"):
            text += [case_table(result)]
        if path.stem in README:
            shutil.copyfile(MADE / f"{path.stem}.svg", HERE / "_static" / f"{README[path.stem]}.svg")
        write(path.stem, text)


def setup(app):
    """Register with Sphinx."""
    app.connect("builder-inited", make)
    return {"parallel_read_safe": True}
