"""How stored examples change."""

from gmed.editing.adversarial_edit import AdversarialEdit
from gmed.editing.edit import Edit, History, Moment
from gmed.editing.gmed import GMED, edit_examples
from gmed.editing.optimal_edit import OptimalEdit
from gmed.editing.random_edit import RandomEdit

__all__ = [
    "GMED",
    "AdversarialEdit",
    "Edit",
    "History",
    "Moment",
    "OptimalEdit",
    "RandomEdit",
    "edit_examples",
]
