"""State that a model's nodes share: declared by its graph, owned by the engine, held by requests and
sessions.
"""

from serving.resources.hashing import media_key
from serving.resources.paged_kv import PagedKV
from serving.resources.positions import Positions
from serving.resources.sampler import Sampler, SamplingParams
from serving.resources.state_slots import StateSlots

__all__ = ["PagedKV", "Positions", "Sampler", "SamplingParams", "StateSlots", "media_key"]
