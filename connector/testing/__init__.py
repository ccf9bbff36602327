"""What tests of the connector and of plugins use: a broker inside the process, and a sink contract to subclass."""
