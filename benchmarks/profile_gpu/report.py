"""The page: one HTML file with tables, pictures and findings, which needs no network and no script.

It is built as a tree and written by the standard library, which escapes all text.
"""

import re
from xml.etree import ElementTree

from benchmarks.profile_gpu import findings, pictures, tables
from benchmarks.profile_gpu.plan import SECTIONS
from benchmarks.text import environment_text

__all__ = ["page"]

# Nothing is loaded from anywhere, even if an error message should hold an address.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root{color-scheme:light dark;--ink:#1d1f23;--ground:#fff;--soft:#5b616b;--line:#d9dce1;--panel:#f5f6f8;--link:#0a5ea8;
--good:#17713f;--act:#b03a00;--note:#44566c;--noisy:#7a6a00}
@media (prefers-color-scheme:dark){:root{--ink:#e3e5e8;--ground:#15171a;--soft:#a3a9b3;--line:#33373d;--panel:#1e2125;
--link:#6db3f2;--good:#5fd08e;--act:#ff9a62;--note:#a9bdd6;--noisy:#d8c45a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:62rem;padding:1rem;background:var(--ground);color:var(--ink);
font:1rem/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;overflow-wrap:break-word}
h1{font-size:1.6rem;line-height:1.2;margin:.6rem 0}
h2{font-size:1.25rem;margin:2.6rem 0 .4rem;padding-top:1rem;border-top:1px solid var(--line)}
a{color:var(--link)}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1rem;list-style:none;padding:0;margin:.8rem 0}
pre{background:var(--panel);padding:.7rem;overflow-x:auto;font-size:.82rem;line-height:1.4;border-radius:.4rem}
.warning{border-left:.3rem solid var(--act);background:var(--panel);padding:.6rem .9rem;border-radius:.2rem}
ul.findings{list-style:none;padding:0;margin:.8rem 0}
ul.findings li{border-left:.3rem solid var(--line);padding:.15rem 0 .15rem .8rem;margin:.6rem 0}
li.good{border-color:var(--good)!important}li.act{border-color:var(--act)!important}
li.note{border-color:var(--note)!important}li.noisy{border-color:var(--noisy)!important}
.mark{white-space:nowrap;font-weight:600;font-size:.85rem;margin-right:.4rem}
.good .mark{color:var(--good)}.act .mark{color:var(--act)}.note .mark{color:var(--note)}.noisy .mark{color:var(--noisy)}
.todo{display:block;color:var(--soft);font-size:.93rem}
.only{border:1px solid var(--line);border-radius:.3rem;padding:0 .3rem;margin-right:.4rem;color:var(--soft);
font-size:.78rem;white-space:nowrap}
.scroll{overflow-x:auto;max-width:100%;margin:0 0 1rem}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
h3{font-size:.95rem;margin:1.4rem 0 .2rem}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--line);text-align:right;
white-space:nowrap;vertical-align:bottom}
th{font-weight:600;color:var(--soft)}
th:first-child,td:first-child{text-align:left;padding-left:0}
@media (max-width:40rem){td:first-child{white-space:normal;min-width:8rem}}
.pictures{display:flex;flex-wrap:wrap;gap:1.2rem;margin:1rem 0}
figure{margin:0;flex:0 1 28.5rem;max-width:100%}
img{display:block;width:100%;max-width:100%;height:auto}
figcaption{color:var(--soft);font-size:.88rem}
footer{margin:3rem 0 1rem;color:var(--soft);font-size:.88rem}
"""
MARKS = {"good": "Good", "act": "To do", "note": "Note", "noisy": "Too noisy"}
CPU_ONLY = "CPU only"
ABOUT = {
    "compile": "A program is compiled at its first call. Both ways start with nothing compiled.",
    "roofline": "Operations are counted in the program as XLA optimised it, floats apart from integers (XLA's own "
    "flops add them up). Ceilings are measured by programs that do nothing else. The bound of a stage is the longest "
    "time that memory, floats or integers take at their ceilings. Not counted: look-ups in a table, and what compilers "
    "share between neighbours; a function such as a logarithm counts as one operation on floats.",
    "batch": "Small calls are mostly overhead; from some size on more angles only take memory.",
    "memory": "Of one call: the program's own account, and what was seen to be taken, which is too little where a "
    "process takes up again what it has freed.",
    "donation": "With donate=True a batch is drawn into the memory of the batch before last.",
    "prefetch": "The host computes sines of each batch for as long as drawing takes. One after the other takes the sum "
    "of both, perfect overlap the longer of them.",
    "transfer": "The call returns before its angles are there; then the host waits; then it copies.",
    "precision": "bfloat16 and float16 are computed in float32 and rounded once. The distribution function of rounded "
    "angles is a staircase, and what it is off by is lost by rounding. Where it rounds from one value to the next, the "
    "draws must still agree with the law.",
    "keys": "The cipher behind the key makes the words; with the table route they are most of the work.",
    "devices": "One result shared out over devices, without communication.",
    "trace": "Recorded by jax.profiler.",
    "log": "What JAX itself logs with jax_log_compiles.",
    "accuracy": "Ours beside others that draw this law (jax.random.normal approximates it at large concentrations). "
    "The p of a shape is the chance of a worse fit; tails are compared in standard errors. What is promised of our "
    "angles is checked without drawing, by the words that give them.",
}
# XML and HTML have no place for these.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def text(value):
    """Text without what no page can hold."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value))


def element(tag, *children, **attributes):
    """An element with texts and elements in it."""
    made = ElementTree.Element(
        tag, {name.rstrip("_").replace("_", "-"): text(value) for name, value in attributes.items()}
    )
    last = None
    for child in children:
        if isinstance(child, ElementTree.Element):
            made.append(child)
            last = child
        elif last is None:
            made.text = (made.text or "") + text(child)
        else:
            last.tail = (last.tail or "") + text(child)
    return made


def finding(found, on_gpu):
    """One finding, with what to do."""
    parts = [element("span", MARKS[found.kind], class_="mark")]
    if found.device_bound and not on_gpu:
        parts.append(element("span", CPU_ONLY, class_="only"))
    parts.append(found.text)
    if found.todo:
        parts.append(element("span", found.todo, class_="todo"))
    return element("li", *parts, class_=found.kind)


def table(shown):
    """One table, in a box of its own that scrolls."""
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in shown.columns)))
    body = element("tbody", *(element("tr", *(element("td", cell) for cell in row)) for row in shown.rows))
    # A box that scrolls can be reached by the keyboard. The caption stands outside, where it does not scroll away.
    box = element("div", element("table", head, body), class_="scroll", tabindex="0", role="region")
    box.set("aria-label", shown.caption)
    return element("div", element("h3", shown.caption), box)


def picture(drawn):
    """One picture with its caption, or why it is missing."""
    if drawn.failed:
        return element("p", f"The picture {drawn.name} failed: {drawn.failed}", class_="warning")
    image = element("img", src=pictures.embedded(drawn), alt=drawn.caption)
    return element("figure", image, element("figcaption", drawn.caption))


def section(name, data, drawn, on_gpu):
    """One section of the page."""
    parts = [element("h2", SECTIONS[name]), element("p", ABOUT[name])]
    found = findings.of_section(name, data)
    parts.append(element("ul", *(finding(each, on_gpu) for each in found), class_="findings"))
    if "error" in data:
        parts.append(element("pre", data["told"]))
    if drawn:
        parts.append(element("div", *(picture(each) for each in drawn), class_="pictures"))
    parts += [table(shown) for shown in tables.of_section(name, data)]
    return element("section", *parts, id=name)


def summary(result, on_gpu):
    """What is to be done, from all sections."""
    found = [
        (name, each)
        for name, data in result["sections"].items()
        for each in findings.of_section(name, data)
        if each.kind == "act"
    ]
    noisy = sum(
        each.kind == "noisy" for name, data in result["sections"].items() for each in findings.of_section(name, data)
    )
    parts = [element("h2", "What to do")]
    if found:
        rows = []
        for name, each in found:
            row = finding(each, on_gpu)
            row.insert(0, element("a", SECTIONS[name], href=f"#{name}"))
            row[0].tail = " "
            rows.append(row)
        parts.append(element("ul", *rows, class_="findings"))
    else:
        parts.append(element("p", "Nothing: no section found anything to change."))
    if noisy:
        parts.append(element("p", f"In {noisy} sections something was too noisy to say. {findings.AGAIN}"))
    return element("section", *parts, id="summary")


def page(result, drawn, no_pictures=None):
    """The whole page as text.

    Parameters
    ----------
    result : dict
        What was measured.
    drawn : list of pictures.Picture
    no_pictures : str, optional
        Why there are none.
    """
    about, options = result["environment"], result["options"]
    on_gpu = about["platform"] == "gpu"
    title = f"Profile of jax_von_mises on {about['device'] if about['platform'] != 'cpu' else about['cpu']}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("title", title),
        element("style", STYLE),
    )
    parts = [element("h1", title)]
    if not on_gpu:
        parts.append(
            element(
                "p",
                f"This was measured on a CPU. What is marked “{CPU_ONLY}” says nothing about a GPU: run it there.",
                class_="warning",
            )
        )
    parts.append(element("pre", environment_text(about)))
    parts.append(
        element(
            "p",
            f"{options['mode'].capitalize()} run, {result['seconds']:.0f} s. Each rate is the median of "
            f"{options['rounds']} turns, in which all of one section take turns in random order; parts of a call are "
            f"timed {options['laps']} times, first calls {options['firsts']} times, the trace and the compile log are "
            "of one run each. Where the middle half of the numbers spans more than a fifth of their median, it says "
            "“too noisy”, and nothing is concluded.",
        )
    )
    if no_pictures:
        parts.append(element("p", f"No pictures: {no_pictures}", class_="warning"))
    links = [element("li", element("a", SECTIONS[name], href=f"#{name}")) for name in result["sections"]]
    parts.append(element("nav", element("ul", *links), aria_label="Sections"))
    parts.append(summary(result, on_gpu))
    for name, data in result["sections"].items():
        parts.append(section(name, data, [each for each in drawn if each.section == name], on_gpu))
    parts.append(element("footer", "Made by python -m benchmarks.profile_gpu; docs/profiling.md tells how to read it."))
    root = element("html", head, element("body", element("main", *parts)), lang="en")
    return "<!DOCTYPE html>\n" + ElementTree.tostring(root, encoding="unicode", method="html") + "\n"
