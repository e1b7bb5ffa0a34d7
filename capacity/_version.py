"""The tool's version, kept apart so that reading it imports nothing."""

__version__ = "1.0.0"
