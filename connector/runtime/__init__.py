"""Around the data path: the main loop, drains, shutdown, and the status it shows."""
