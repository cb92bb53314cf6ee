"""OpenAI's request and response shapes, one file a group of routes. Their defaults are OpenAI's."""
