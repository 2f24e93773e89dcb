"""Kerekes, Mészáros, Huszár: Depth without the magic. One file per claim."""
