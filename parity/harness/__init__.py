"""A harness that proves a port against its reference: cases, comparators, taps, a ledger, a pytest plugin.

It imports nothing of this repository but itself, so it works beside any model. Its low half (cases,
recipes, numerics, taps) needs only torch, numpy and safetensors, because recorders import it in the
reference's environment.
"""

from parity.harness import audio, image, text  # they add their metrics
from parity.harness.cases import Case, CaseError, CaseMissing, Manifest, load_case
from parity.harness.compare import METRICS, Result, compare
from parity.harness.numerics import Refused
from parity.harness.recipes import Recipe, Spec, recipe_for

__all__ = [
    "METRICS",
    "Case",
    "CaseError",
    "CaseMissing",
    "Manifest",
    "Recipe",
    "Refused",
    "Result",
    "Spec",
    "audio",
    "compare",
    "image",
    "load_case",
    "recipe_for",
    "text",
]
