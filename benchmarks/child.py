"""``python -m benchmarks.child FILE MODULE ARGUMENTS``: run a module, and write which entries it
has loaded.
"""

import json
import runpy
import sys
from pathlib import Path

from mirrordescent_experiments.provenance import recorded

if __name__ == "__main__":
    file, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    with recorded("those of the parent") as found:
        runpy.run_module(module, run_name="__main__")
    Path(file).write_text(json.dumps(list(found["entries"])), encoding="utf-8")
