"""The plugin for Avalanche (:mod:`gmed.integrations.avalanche`)."""

from gmed.integrations.avalanche import GMEDPlugin

__all__ = ["GMEDPlugin"]
