"""What tests of the connector and of plugins use: a broker inside the process, a fake client, a source in memory."""
