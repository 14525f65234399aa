"""The command line: ``gmed``."""


def main() -> None:
    """Run the command line; answer without importing torch where possible."""
    import gc
    import sys

    from gmed.cli.exit import run_program
    from gmed.cli.static import answer

    answered = False

    def try_answer() -> None:
        nonlocal answered
        answered = answer(sys.argv[1:])

    run_program(try_answer)
    if not answered:
        gc.disable()  # nothing that is imported is garbage; the program enables it again
        from gmed.cli.app import main as run

        run()
