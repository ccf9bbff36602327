"""One thread's way from lanes to a sink: decode, batch, write, retry, acknowledge."""
