"""Speed, measured side by side with other solvers and libraries in the same run, and reported as ratios."""

from mirrordescent_lab.provenance import tell_parent

tell_parent()  # of the entries that processes load which a benchmark has started
