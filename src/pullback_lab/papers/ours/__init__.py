"""What the sources leave open, and models whose natural gradient is known in another way."""
