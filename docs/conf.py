"""Sphinx: `make docs` builds the pages into docs/_build."""

import sys
from pathlib import Path

import jax_von_mises

sys.path.insert(0, str(Path(__file__).parent))

project = "jax_von_mises"
author = f"The {project} authors"
release = version = jax_von_mises.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "mathml",
]
exclude_patterns = ["_build"]
nitpicky = True
html_theme = "furo"
html_title = f"{project} {release}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 2

# Types of parameters are prose ("float or array"), not names of Python.
napoleon_use_param = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
# Annotations of the fields of dataclasses say less than their docstrings.
autodoc_typehints = "none"

# Exceptions of Python itself: their pages would need a network.
nitpick_ignore = [("py:exc", "TypeError"), ("py:exc", "ValueError")]
# Comments of the source cite the references too, and those are not on the page.
suppress_warnings = ["ref.footnote"]
