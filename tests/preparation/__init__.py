"""Prepares what tests need and the repository does not contain: Python environments, and programs built from source."""
