"""The HTTP surface: OpenAI's routes over loaded models."""

from serving.api.app import build_app

__all__ = ["build_app"]
