"""Test-then-train evaluation (:mod:`gmed.online.prequential`)."""

from gmed.online.prequential import Prequential, prequential

__all__ = ["Prequential", "prequential"]
