"""How tests get their servers: Kafka and PostgreSQL, from the environment, Docker, or programs on this machine."""
