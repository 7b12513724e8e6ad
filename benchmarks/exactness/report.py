"""The page of a result: the verdict in words, the picture, and all tests in tables."""

from benchmarks.page import address, document, element, table
from benchmarks.text import environment_text, install_command
from benchmarks.text import table as text_table

__all__ = ["page", "rows", "sentence", "told"]


def sentence(result):
    """What a result says, in one sentence."""
    odds = f"a sampler that keeps its promise is reported once in {1 / result['false_alarm']:,.0f} runs"
    return f"{len(result['verdicts'])} tests on {result['angles']:,} angles, {result['reported']} reported; {odds}"


def by_law(result):
    """For each law its name, what the pictures show of it, the number of its tests, and the least likely of them."""
    for name, law in result["laws"].items():
        tests = [verdict for verdict in result["verdicts"] if verdict["law"] == name]
        yield name, law, len(tests), min(tests, key=lambda verdict: verdict["p"])


def told(result):
    """The least likely test of each law, as text."""
    lines = [("law", "tests", "least likely", "found", "p at most")]
    lines += [
        (name, tests, least["test"], least["found"], f"{least['p']:.2g}") for name, _, tests, least in by_law(result)
    ]
    return text_table(lines)


def rows(result):
    """A row for each law: its angles, its tests, the least likely of them, and the largest error of all words."""
    made = []
    for name, law, tests, least in by_law(result):
        worst = f"{max(law['worst']['share']):.2f}" if "worst" in law else "-"
        made.append((name, f"{law['angles']:,}", str(tests), least["test"], f"{least['p']:.2g}", worst))
    return made


def page(result, svg):
    """The whole page as text; `svg` is the picture, None where there is none."""
    limit = result["false_alarm"] / len(result["verdicts"])
    parts = [element("pre", environment_text(result["environment"]))]
    parts.append(element("p", f"{sentence(result)}.", class_="warning" if result["reported"] else "note"))
    parts.append(
        element(
            "p",
            "A p is a bound on the chance of a worse agreement, for a sampler that is off by as much as the promise "
            f"allows; what is below {limit:.1e} is reported. The promise is an error of 2e-6 of the tail probability, "
            "or of 4 units in the last place of the angle. docs/exactness.md tells what the tests are.",
        )
    )
    if svg is None:
        parts.append(element("p", f"No picture: matplotlib is not installed: {install_command('plots')}"))
    else:
        parts.append(element("img", src=address(svg), alt="Bins, tails, errors of all words, and tests"))
    columns = ("law", "angles", "tests", "least likely", "p at most", "largest error, of the promise")
    parts.append(table("Laws", columns, rows(result)))
    every = [
        (each["law"], each["test"], each["found"], f"{each['p']:.2g}", "REPORTED" if not each["p"] >= limit else "")
        for each in result["verdicts"]
    ]
    parts.append(table("All tests", ("law", "test", "found", "p at most", ""), every))
    parts.append(element("footer", "Made by python -m benchmarks.exactness."))
    return document("Exactness of jax_von_mises", *parts)
