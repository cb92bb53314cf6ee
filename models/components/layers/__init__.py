"""Layers that several families compute with. What a layer keeps between steps is handed in by the step."""
