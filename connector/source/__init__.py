"""Where records come from: the consumer thread, its rebalances, where a lane starts and where a bounded one ends."""
