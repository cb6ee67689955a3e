"""References: certified optima, so that every gap in the project is a proven one."""

from mirrordescent.references.certificate import Certificate, certify, register
from mirrordescent.references.estimate import estimate

__all__ = ["Certificate", "certify", "estimate", "register"]
