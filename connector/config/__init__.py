"""Configuration: the environment to checked settings, what of it is in effect, and its reference pages."""
