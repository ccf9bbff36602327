"""Dead letters: records that cannot be written, kept whole in a topic of their own, and the way back."""
