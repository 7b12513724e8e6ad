"""Write the page of a profile: plain HTML without scripts or other files."""

import base64
import datetime
from html import escape

from benchmarks import environment
from benchmarks.profile_gpu import pictures
from benchmarks.profile_gpu.sections import SECTIONS
from benchmarks.text import cells

__all__ = ["page", "section"]

# What a profile of a CPU can show, and what it cannot.
CPU = (
    "This is a profile of a CPU. It shows the rates, first calls, recompilations and temporary memory on this "
    "processor, and which sizes, keys, dtypes and streams suit it. It cannot show what a GPU would do: here no program "
    "is launched on a device, nothing is copied to the host, the memory in use is not counted, and all devices share "
    "the same cores."
)

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


def tabled(kind, texts):
    """Return a row of a table as HTML; `kind` is th or td."""
    return f"<tr>{''.join(f'<{kind}>{escape(text)}</{kind}>' for text in texts)}</tr>"


def section(name, rows, error=None):
    """Return the HTML of a section and its findings, from its rows or from the error that ended it."""
    this = SECTIONS[name]
    parts = [f'<section id="{name}">', f"<h2>{name.capitalize()}</h2>", paragraph(this.text)]
    if error is not None:
        parts.append(paragraph(f"This section failed: {error}", warning=True))
    elif not rows:
        parts.append(paragraph("There is nothing to compare on this machine."))
    if rows and this.picture is not None and (svg := pictures.draw(this.picture, rows)):
        image = base64.b64encode(svg.encode()).decode()
        parts.append(f'<img alt="{name}" src="data:image/svg+xml;base64,{image}">')
    if rows:
        headings, *lines = cells(rows, this.fields)
        parts += ["<table>", tabled("th", headings), *(tabled("td", line) for line in lines), "</table>"]
    return "\n".join([*parts, "</section>"]), tuple(this.findings(rows)) if rows else ()


def page(done, missing, machine, seconds):
    """Return the page from the finished sections by name, and from the names of those that were not measured."""
    links = [f'<a href="#{name}">{name.capitalize()}</a>' for name in done]
    findings = [finding for _, found in done.values() for finding in found]
    about = f"{machine['device']}; {machine['processor']}; {datetime.date.today().isoformat()}, {seconds:.0f} s."
    parts = ["<h1>Profile of jax_von_mises</h1>", paragraph(about)]
    if machine["platform"] == "cpu":
        parts.append(paragraph(CPU))
    if missing:
        parts.append(paragraph(f"The run did not finish. Missing sections: {', '.join(missing)}.", warning=True))
    listed = [f"<li>{escape(finding)}</li>" for finding in findings]
    parts += ["<h2>Findings</h2>", *(["<ul>", *listed, "</ul>"] if listed else [paragraph("None.")])]
    parts.append(f"<nav>{' '.join(links)}</nav>")
    parts += [shown for shown, _ in done.values()]
    parts += [
        '<section id="method">',
        "<h2>Machine and method</h2>",
        f"<pre>{escape(environment.text(machine))}</pre>",
        paragraph(
            "The rows of a table with rates take turns in random order. Their times are lower quartiles, with spans "
            "from the shortest time to the upper quartile. A relative rate has the first row as reference (for sizes, "
            "the first row of each size), and an interval that contains the median with a probability of 90%; if it "
            "contains 1, neither is faster beyond doubt."
        ),
        paragraph(
            "Made by python -m benchmarks.profile_gpu; docs/benchmarks.md explains how to read it. To see which "
            "operations run when, record a trace with jax.profiler.trace; docs/gpu.md shows how."
        ),
        "</section>",
    ]
    return HEAD + "\n".join([*parts, "</body>", "</html>", ""])
