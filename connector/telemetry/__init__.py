"""What the connector tells about itself: metrics, logs, and the status snapshot."""
