"""Render formulas as MathML when the documentation is built, so that readers need neither a network nor scripts."""

from docutils import nodes
from latex2mathml.converter import convert


def inline(translator, node):
    """Write an inline formula."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(translator, node):
    """Write a displayed formula."""
    translator.body.append(
        f'<div class="math">{convert(node.astext().strip(), display="block")}</div>'
    )
    raise nodes.SkipNode


def setup(app):
    """Register the renderer with Sphinx."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True}
