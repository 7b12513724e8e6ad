"""Draws the committed results of the benchmarks when the documentation is built: pictures, and tables in Markdown."""

import json
from pathlib import Path

from benchmarks import plots, streaming_plots
from benchmarks.cases import TASKS
from benchmarks.peers import PEERS
from benchmarks.startup import WAYS
from benchmarks.text import NOISE

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
MADE = HERE / "_generated"

LABELS = {peer.name: peer.label for peer in PEERS}


def speed_tables(result):
    """A row for each case, a column for each peer: the rate, and how many times ours is it. Draws, then the rest."""
    draws = [case for case in result["cases"] if case["task"] == "sample"]
    others = [case for case in result["cases"] if case["task"] != "sample"]
    return "\n\n".join(speed_table(cases) for cases in (draws, others) if cases)


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
                cells.append(number(found["rate"] / unit.scale) + (f" ({number(found['ratio'])}×)" if told else ""))
        what = "" if case["name"] == case["task"] else f"{case['name']}, "
        task = "" if case["task"] == "sample" else f"{case['task']}, "
        lines.append(f"| {task}{what}{case['count']:,}; {unit.unit} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def number(value):
    """Three digits, and no powers of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


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


def machine(result):
    """The machine and the versions of a result, in a line."""
    found = result["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    run = f"{result['options']['mode']} run of {result['options']['rounds']} rounds"
    return f"{plots.machine_text(found)}; Python {found['python']}; {versions}; commit {found['commit']}; {run}."


def make(app=None):
    """Write pictures and tables of all results."""
    MADE.mkdir(exist_ok=True)
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        program = result.get("program", "performance_benchmark")
        text = [machine(result), ""]
        if program == "performance_benchmark":
            assert plots.main([str(path), "--out", str(MADE / f"{path.stem}.svg")]) == 0
            text += [f"![Speed and accuracy]({path.stem}.svg)", "", speed_tables(result)]
        elif program == "streaming":
            assert streaming_plots.main([str(path), "--out", str(MADE / f"{path.stem}.svg")]) == 0
            text += [f"![Memory and rates]({path.stem}.svg)"]
        elif program == "startup":
            text += [startup_table(result)]
        (MADE / f"{path.stem}.md").write_text("\n".join(text) + "\n", encoding="utf-8")


def setup(app):
    """Register with Sphinx."""
    app.connect("builder-inited", make)
    return {"parallel_read_safe": True}
