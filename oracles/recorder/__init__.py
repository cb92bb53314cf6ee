"""Recording what references compute. Behind `toolkit oracle record | verify | diff | accept | status`.

A family's folder has an `env.toml` (see `environment`) and a `record.py`:

```python
CASES = {                                   # a literal: name -> configuration, which goes into the manifest
    "tiny": {"seed": 7, "width": 64},
    "real": {"needs": ["weights"]},         # files given by --input weights=PATH
}

def record(case: Recording) -> None:        # parity.harness.record.Recording
    model = reference.Model(case.config["width"])
    recipe = recipe_for(model, case.config["seed"])      # every parameter and buffer
    model.load_state_dict(recipe.build())
    case.recipe(recipe)
    case.inputs(mel=mel)
    with case.taps(model):                  # every module, in execution order, with its inputs
        logits = model(mel)
    case.outputs(logits=logits)
    case.values["tokens"] = [1, 2, 3]       # anything that JSON holds
```

`record` runs without gradients, under the flags of `numerics.EXACT`; a case changes them by `"settable": {...}`. The
recorder imports the reference and `parity.harness`, and never the port: a recording during which a module of the
project was imported is thrown away. Recordings go to `.recordings/`, which git does not see; `accept` alone puts one in
`cases/`.
"""

from oracles.recorder.environment import Environment, EnvironmentRefused
from oracles.recorder.run import Recorded, RecordingFailed, cases_of, families
from oracles.recorder.versions import (
    Change,
    NotAccepted,
    Status,
    Verified,
    accept,
    default_root,
    diff,
    lacking,
    record,
    status,
    verify,
)

__all__ = [
    "Change",
    "Environment",
    "EnvironmentRefused",
    "NotAccepted",
    "Recorded",
    "RecordingFailed",
    "Status",
    "Verified",
    "accept",
    "cases_of",
    "default_root",
    "diff",
    "families",
    "lacking",
    "record",
    "status",
    "verify",
]
