"""Layers that several families compute with."""
