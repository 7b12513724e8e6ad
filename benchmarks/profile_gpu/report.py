"""The page: one HTML file with tables, pictures and findings."""

from benchmarks.page import address, document, element, table
from benchmarks.profile_gpu import findings, tables
from benchmarks.profile_gpu.plan import SECTIONS
from benchmarks.text import environment_text

__all__ = ["page"]

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


def finding(found, on_gpu):
    """One finding, with what to do."""
    parts = [element("span", MARKS[found.kind], class_="mark")]
    if found.device_bound and not on_gpu:
        parts.append(element("span", CPU_ONLY, class_="only"))
    parts.append(found.text)
    if found.todo:
        parts.append(element("span", found.todo, class_="todo"))
    return element("li", *parts, class_=found.kind)


def picture(drawn):
    """One picture with its caption, or why it is missing."""
    if drawn.failed:
        return element("p", f"The picture {drawn.name} failed: {drawn.failed}", class_="warning")
    image = element("img", src=address(drawn.svg), alt=drawn.caption)
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
    parts += [table(*shown) for shown in tables.of_section(name, data)]
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
    parts = []
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
    return document(title, *parts)
