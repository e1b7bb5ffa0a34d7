"""Pre-purchase sizing: which GPUs, how many, in which layout, with how much room."""
