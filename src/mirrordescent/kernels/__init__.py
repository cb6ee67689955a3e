"""Loops in C for what takes several passes over memory in torch, built on request by the machine's own compiler."""

from mirrordescent.kernels.build import BuildError, library, ready

__all__ = ["BuildError", "library", "ready"]
