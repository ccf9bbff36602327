"""When which position is committed, and what each answer of the group coordinator means. Pure."""
