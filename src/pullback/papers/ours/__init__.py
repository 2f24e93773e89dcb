"""What the sources leave open. One file a claim."""
