"""Speed, measured side by side with other solvers and libraries in the same run, and reported as
ratios.
"""
