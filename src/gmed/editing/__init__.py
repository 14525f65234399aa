"""How stored examples change."""

# ruff: isort: skip_file
# in the order in which edits are listed
from gmed.editing.base import Edit, History, EditContext
from gmed.editing.gmed import GMED, edit_examples
from gmed.editing.random_edit import RandomEdit
from gmed.editing.adversarial_edit import AdversarialEdit
from gmed.editing.optimal_edit import OptimalEdit

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
