"""Sinks as the engine sees them: found by entry point, run on a pipeline's thread, and retried with backoff."""
