"""Configure Sphinx; ``make docs`` builds the pages in docs/_build."""

import sys
from pathlib import Path

import jax_von_mises

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs import pages

project = "jax_von_mises"
author = f"The {project} authors"
release = version = jax_von_mises.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docs.mathml",
]
exclude_patterns = ["_build"]
nitpicky = True
html_theme = "furo"
html_title = f"{project} {release}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_logo = "_static/logo.svg"
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 2

# Parameter types are prose ("float or array"), not Python names.
napoleon_use_param = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
# The docstrings of dataclass fields are more precise than their annotations.
autodoc_typehints = "none"

# Do not link to built-in exceptions, since links to their pages would need the network.
nitpick_ignore = [("py:exc", "TypeError"), ("py:exc", "ValueError")]
# Some references are cited only in source comments, which the pages do not show.
suppress_warnings = ["ref.footnote"]


def setup(app):
    """Draw the pictures before the pages are read."""
    app.connect("builder-inited", lambda app: pages.draw())
