"""Pages of HTML in one file, which need no network and no script.

A page is built as a tree and written by the standard library, which escapes all text.
"""

import base64
import re
from xml.etree import ElementTree

__all__ = ["address", "document", "element", "table"]

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


def table(caption, columns, rows):
    """One table, in a box of its own that scrolls."""
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in columns)))
    body = element("tbody", *(element("tr", *(element("td", cell) for cell in row)) for row in rows))
    # A box that scrolls can be reached by the keyboard. The caption stands outside, where it does not scroll away.
    box = element("div", element("table", head, body), class_="scroll", tabindex="0", role="region")
    box.set("aria-label", caption)
    return element("div", element("h3", caption), box)


def address(svg):
    """An address that holds a whole picture, bytes of SVG."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def document(title, *parts):
    """The whole page as text."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("title", title),
        element("style", STYLE),
    )
    root = element("html", head, element("body", element("main", element("h1", title), *parts)), lang="en")
    return "<!DOCTYPE html>\n" + ElementTree.tostring(root, encoding="unicode", method="html") + "\n"
