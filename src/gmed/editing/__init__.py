"""How stored examples change."""

from gmed.editing.edit import Edit
from gmed.editing.gmed import GMED, edit_examples

__all__ = ["GMED", "Edit", "edit_examples"]
