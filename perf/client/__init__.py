"""The bench's client: HTTP/1.1 that stamps bytes as the socket gives them, and a reader for each route."""
