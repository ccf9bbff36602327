"""Positions of a group, looked at and set from outside, for `connector offsets`: read, plan, apply."""
