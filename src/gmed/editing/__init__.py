"""How stored examples change."""

from typing import TYPE_CHECKING
from gmed.deprecated import old_names

# ruff: isort: skip_file
# in the order in which edits are listed
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
