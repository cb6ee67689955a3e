"""The laboratory: the experiments, the recipes of the zoo's entries, their data, and the
demonstration.

It is in the repository but not in the installed package: of ``mirrordescent``, only some commands
need it.
"""
