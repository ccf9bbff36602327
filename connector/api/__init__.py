"""The two interfaces and what they speak of. Plugins import these names from `connector`."""
