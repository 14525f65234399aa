"""``python -m gmed.cli`` is ``gmed``."""

from gmed.cli import main

main()
