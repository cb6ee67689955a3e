"""How the documentation is built: ``make docs``. Notebooks of the gallery are executed."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for the directives beside this file
import mirrordescent

os.environ["OMP_NUM_THREADS"] = "1"  # of the kernels that run notebooks, for stable times

# A folder of settings for these kernels, so that those of the user have no influence.
IPYTHON = tempfile.TemporaryDirectory()
(Path(IPYTHON.name) / "profile_default").mkdir()
(Path(IPYTHON.name) / "profile_default" / "ipython_kernel_config.py").write_text(
    "c.IPKernelApp.log_level = 40\n"
)
os.environ["IPYTHONDIR"] = IPYTHON.name

project = "mirrordescent"
author = "The mirrordescent developers"
copyright = "The mirrordescent developers"
release = version = mirrordescent.__version__

extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "directives",
]
source_suffix = {".md": "myst-nb"}
exclude_patterns = ["results/README.md"]  # its table is on the page of results

myst_enable_extensions = ["colon_fence", "attrs_block", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True

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
html_title = f"mirrordescent {release}"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
html_use_index = False  # one page with all names would be 30 000 pixels tall
html_search_scorer = str(Path(__file__).parent / "search_scorer.js")
pygments_style = "friendly"
pygments_dark_style = "monokai"
