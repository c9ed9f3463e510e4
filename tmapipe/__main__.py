"""``python -m tmapipe``: the command."""

from tmapipe.command.app import main

if __name__ == "__main__":
    main()
