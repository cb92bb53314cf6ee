"""Layers of language models over packed tokens [T, D]. What a layer keeps between steps is handed in by the step."""
