"""The paper: its published numbers, and the runs that reproduce them."""

from gmed.paper.published import PREVIOUS_BEST, Cell, Quantity, cells, published, quantities, table

__all__ = ["PREVIOUS_BEST", "Cell", "Quantity", "cells", "published", "quantities", "table"]
