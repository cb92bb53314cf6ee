"""The command line: one file a command group; `main.py` wires them. Heavy imports wait until a command needs them."""
