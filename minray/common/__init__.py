"""Nouns: values without behaviour, importable from everywhere."""
