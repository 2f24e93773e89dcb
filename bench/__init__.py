"""Times, as ratios measured in one run."""
