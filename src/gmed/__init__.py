"""Online, task-free continual learning with an editable replay memory."""
from gmed import data, editing, errors, learners, memory, models, retrieval, streams
from gmed.editing import edit_examples
