"""Lanes: the bounded buffer between the consumer thread and one pipeline, and which pipeline takes which lane."""
