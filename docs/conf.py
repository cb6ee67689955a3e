"""How the documentation is built: ``make docs``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for the directives beside this file

import mirrordescent

project = "mirrordescent"
copyright = "the authors of mirrordescent"
release = version = mirrordescent.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "directives",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["results/README.md"]  # its table is on the page of results

myst_enable_extensions = ["colon_fence", "attrs_block", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"exclude-members": "extra_repr"}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    name: name for name in ("Tree", "ScheduleLike", "ImageLike", "MirrorLike", "Params", "Number")
}
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "mirrordescent"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
