"""Certified optima: reference values with proven lower bounds, so that gaps are proven too."""

from mirrordescent.references.certificate import Certificate, certify, register
from mirrordescent.references.estimate import estimate
from mirrordescent.references.verification import Verification, Witness

__all__ = ["Certificate", "Verification", "Witness", "certify", "estimate", "register"]
