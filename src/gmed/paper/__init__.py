"""The paper: its published numbers."""

from gmed.paper.published import PREVIOUS_BEST, Cell, Quantity, cells, published, quantities, table

__all__ = ["PREVIOUS_BEST", "Cell", "Quantity", "cells", "published", "quantities", "table"]
