"""Sphinx: `make docs` builds the pages into docs/_build."""

import sys
from pathlib import Path

import jax_von_mises

# The benchmarks, whose results are drawn, are no part of what is installed.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

project = "jax_von_mises"
author = f"The {project} authors"
release = version = jax_von_mises.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
# Of this folder: tables and pictures, which are made by the build.
extensions += ["architecture", "gallery", "results"]
exclude_patterns = ["_build", "_generated"]
nitpicky = True
html_theme = "furo"
html_title = f"{project} {release}"
html_show_copyright = False

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 2

# Types of parameters are prose ("float or array"), which is not to be looked up as names of Python.
napoleon_use_param = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
# Annotations of the fields of dataclasses say less than their docstrings.
autodoc_typehints = "none"

# Exceptions of Python itself: their pages would need a network.
nitpick_ignore = [("py:exc", "TypeError"), ("py:exc", "ValueError")]
# Comments of the source cite the references too, and those are not on the page.
suppress_warnings = ["ref.footnote"]
