"""Containers and codecs at the door: bytes to arrays and back. Ports take and give arrays and never see these."""
