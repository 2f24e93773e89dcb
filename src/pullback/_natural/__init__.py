"""The formula: evaluate, factorise, solve, judge."""
