"""Write the page of a profile: plain HTML without scripts or other files."""

import base64
import datetime
from html import escape

from benchmarks import environment
from benchmarks.profile_gpu import pictures
from benchmarks.profile_gpu.sections import SECTIONS
from benchmarks.text import bytes_text, interval_text, number, time_text

__all__ = ["page", "section"]

FIELDS = {
    "line": ("", lambda value, row: value),
    "count": ("angles", lambda value, row: f"{value:,}"),
    "seconds": ("time", lambda value, row: time_text(value)),
    "span": ("span", lambda value, row: " to ".join(map(time_text, value))),
    "rate": ("rate, M/s", lambda value, row: number(value / 1e6)),
    "ratio": ("relative rate", lambda value, row: interval_text(*value)),
    "result": ("result", lambda value, row: bytes_text(value)),
    "temporary": ("temporary", lambda value, row: bytes_text(value)),
    "seen": ("counted", lambda value, row: bytes_text(value)),
    "compiled": ("compiled programs", lambda value, row: str(value)),
    "share": ("share of bound", lambda value, row: f"{value:.0%}"),
    "bound_by": ("bound by", lambda value, row: value),
    "operations": ("operations per element", lambda value, row: number(value / row["count"])),
    "bytes": ("bytes per element", lambda value, row: number(value / row["count"])),
    "distinct": ("distinct values", lambda value, row: f"{value:,}"),
    "calls": ("calls", lambda value, row: f"{value:,}"),
}
"""For each field of a row, the heading of its column, and a function from its value and the row to text."""

HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Profile of jax_von_mises</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: auto }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
pre { white-space: pre-wrap; background: #eee; padding: .8rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
.warning { border-left: 4px solid #d55e00; padding-left: .8rem; }
nav a { margin-right: 1rem; }
img { max-width: 100%; }
</style>
</head>
<body>
"""


def paragraph(text, warning=False):
    """Return a paragraph as HTML."""
    return f"<p{' class=warning' * warning}>{escape(text)}</p>"


def cells(row, fields):
    """Return the texts of a row."""
    if "failed" in row:
        return [row["line"], row["failed"], *[""] * (len(fields) - 2)]
    return ["" if row.get(field) is None else FIELDS[field][1](row[field], row) for field in fields]


def tabled(kind, texts):
    """Return a row of a table as HTML; `kind` is th or td."""
    return f"<tr>{''.join(f'<{kind}>{escape(text)}</{kind}>' for text in texts)}</tr>"


def section(name, rows, error=None):
    """Return the HTML of a section and its findings, from its rows or from the error that ended it."""
    this = SECTIONS[name]
    parts = [f'<section id="{name}">', f"<h2>{name.capitalize()}</h2>", paragraph(this.text)]
    if error is not None:
        parts.append(paragraph(f"This section failed: {error}", warning=True))
    if rows and this.picture is not None and (svg := pictures.draw(this.picture, rows)):
        image = base64.b64encode(svg.encode()).decode()
        parts.append(f'<img alt="{name}" src="data:image/svg+xml;base64,{image}">')
    if rows:
        heading = tabled("th", [FIELDS[field][0] for field in this.fields])
        parts += ["<table>", heading, *(tabled("td", cells(row, this.fields)) for row in rows), "</table>"]
    return "\n".join([*parts, "</section>"]), tuple(this.findings(rows)) if rows else ()


def page(done, missing, machine, seconds):
    """Return the page from the finished sections by name, and from the names of those that were not measured."""
    links = [f'<a href="#{name}">{name.capitalize()}</a>' for name in done]
    findings = [finding for _, found in done.values() for finding in found]
    parts = [
        "<h1>Profile of jax_von_mises</h1>",
        f"<pre>{escape(environment.text(machine))}</pre>",
        paragraph(
            f"{datetime.date.today().isoformat()}, {seconds:.0f} s. The rows of a table with rates take turns in "
            "random order. Their times are lower quartiles, with spans from the shortest time to the upper quartile. "
            "Relative rates have the first row as reference, and an interval that contains the median with a "
            "probability of 90%."
        ),
    ]
    if missing:
        parts.append(paragraph(f"The run did not finish. Missing sections: {', '.join(missing)}.", warning=True))
    if machine["platform"] == "cpu":
        parts.append(paragraph("On a CPU, the costs of copies, launches and memory say little about a GPU."))
    parts.append(f"<nav>{' '.join(links)}</nav>")
    listed = [f"<li>{escape(finding)}</li>" for finding in findings]
    parts += ["<h2>Findings</h2>", *(["<ul>", *listed, "</ul>"] if listed else [paragraph("None.")])]
    parts += [shown for shown, _ in done.values()]
    parts.append(paragraph("Made by python -m benchmarks.profile_gpu; docs/profiling.md explains how to read it."))
    return HEAD + "\n".join([*parts, "</body>", "</html>", ""])
