"""Text that ports share: cutting it for speech, and putting it back together."""
