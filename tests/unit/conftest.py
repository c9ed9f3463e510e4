"""Hypothesis without deadlines: these tests share two cores with compilations."""

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
