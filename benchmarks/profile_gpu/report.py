"""Build the page of a profile from its data and a template."""

import base64
import datetime
import textwrap

from benchmarks.profile_gpu.findings import findings
from benchmarks.profile_gpu.sections import SECTIONS
from benchmarks.text import environment_text, number, time_text
from jax_von_mises.streams.disk import readable

__all__ = ["cells", "page"]


FORMATS = {
    "text": lambda value, row: str(value),
    "count": lambda value, row: f"{value:,}",
    "time": lambda value, row: time_text(value),
    "rate": lambda value, row: number(value / 1e6),
    "share": lambda value, row: f"{value:.0%}",
    "bytes": lambda value, row: readable(value),
    "per element": lambda value, row: number(value / row["count"]),
}
# Formats of timed values. Times and rates are shown with their spread. All are grey if unsteady or from a busy machine.
TIMED = ("time", "rate", "share")


def cells(row, columns, quiet):
    """Return the cells of a row as pairs: the text, and whether it is grey."""
    if "failed" in row:
        return [(row["line"], False), (row["failed"], True), *[("", False)] * (len(columns) - 2)]
    found = []
    for column in columns:
        value = row.get(column.field)
        text = "" if value is None else FORMATS[column.form](value, row)
        timed = column.form in TIMED and "spread" in row and value is not None
        if timed and column.form != "share":
            text += f" ± {row['spread'] / 2:.0%}"
        found.append((text, timed and not (quiet and row["steady"])))
    return found


def page(result, pictures):
    """Return the page as text.

    Parameters
    ----------
    result : dict
        The measurements.
    pictures : dict of str to bytes
        SVG files by section.
    """
    import jinja2

    quiet = result["machine_state"]["quiet"]
    sections = []
    for name, data in result["sections"].items():
        section = SECTIONS[name]
        rows = [cells(row, section.columns, quiet) for row in data.get("rows", ())]
        image = base64.b64encode(pictures[name]).decode() if name in pictures else None
        sections.append({"name": name, "section": section, "rows": rows, "image": image, "error": data.get("error")})
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("benchmarks.profile_gpu", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.jinja").render(
        result=result,
        sections=sections,
        findings=findings(result),
        environment=textwrap.dedent(environment_text(result["environment"])),
        today=datetime.date.today().isoformat(),
    )
