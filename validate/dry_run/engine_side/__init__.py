"""Runs inside the other Python, with this folder on its path; imports nothing of this tool."""
