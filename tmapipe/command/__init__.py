"""The command `tmapipe`: the library's verbs on a shipped schedule, or on one of a user's (docs/command.md)."""
