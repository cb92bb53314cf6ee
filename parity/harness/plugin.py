"""The pytest plugin: options, hooks and fixtures of the parity harness."""
