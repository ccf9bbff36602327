"""What is safe to commit: the finished prefix of every lane. Pure; the controller calls it."""
