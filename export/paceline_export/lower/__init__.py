"""Implementations of the op vocabulary: one file a format."""
