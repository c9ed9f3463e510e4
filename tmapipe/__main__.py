"""``python -m tmapipe``: the command."""

from tmapipe.command import main

if __name__ == "__main__":
    main()
