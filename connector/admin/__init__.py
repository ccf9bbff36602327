"""The admin endpoint: metrics, health, status and a live page over HTTP."""
