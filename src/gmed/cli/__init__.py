"""The command line: ``gmed``."""


def main() -> None:
    """Run the command line."""
    from gmed.cli.app import main as run

    run()
