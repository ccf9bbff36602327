"""Sinks and transforms of other makers: found by entry point or in a directory, imported, and imported again."""
