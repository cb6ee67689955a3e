"""Certified optima: reference values with proven lower bounds, so that gaps are proven too."""

from mirrordescent.references.certificate import Certificate, certify, register
from mirrordescent.references.estimate import estimate

__all__ = ["Certificate", "certify", "estimate", "register"]
