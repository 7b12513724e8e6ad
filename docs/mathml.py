"""Render formulas as MathML when the documentation is built: readers need neither a network nor scripts."""

from docutils import nodes
from latex2mathml.converter import convert


def inline(translator, node):
    """Write a formula within a line."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(translator, node):
    """Write a formula on a line by itself."""
    translator.body.append(
        f'<div class="math">{convert(node.astext().strip(), display="block")}</div>'
    )
    raise nodes.SkipNode


def setup(app):
    """Register with Sphinx."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True}
