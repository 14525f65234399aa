"""Edits: how stored examples are changed."""

from typing import TYPE_CHECKING
from gmed.deprecated import old_names

# ruff: isort: skip_file
# the order of imports is that of the list of edits
from gmed.editing.base import Edit, History, EditContext
from gmed.editing.gmed import GMED, edit_examples
from gmed.editing.random_edit import RandomEdit
from gmed.editing.adversarial_edit import AdversarialEdit
from gmed.editing.optimal_edit import OptimalEdit

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


__all__ = [
    "GMED",
    "AdversarialEdit",
    "Edit",
    "EditContext",
    "History",
    "OptimalEdit",
    "RandomEdit",
    "edit_examples",
]
