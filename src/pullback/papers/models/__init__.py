"""Statistical models whose natural gradient is known in another way."""
