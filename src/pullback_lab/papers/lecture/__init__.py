"""Grosse: CSC 2541 Neural net training dynamics, lecture 3: Metrics."""
