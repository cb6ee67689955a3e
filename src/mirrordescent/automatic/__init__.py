"""Find the fastest solver for a class of problems, learned or classical, in one call."""

from mirrordescent._internal.deprecation import renamed_attributes
from mirrordescent.automatic.outcome import AutoResult
from mirrordescent.automatic.pipeline import auto
from mirrordescent.automatic.suitability import Suitability, check_suitability

__all__ = ["AutoResult", "Suitability", "auto", "check_suitability"]
__getattr__ = renamed_attributes(__name__, {"Auto": "AutoResult"})
