"""What the fixtures `oracle` and `check` do: load cases under their flags, compare by the ledger, keep the
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from parity.harness import faults, numerics
from parity.harness.bisect import Adapter, Bisector
from parity.harness.cases import Case, dtype_name, load_case, sampled, tensor_hash
from parity.harness.compare import Result, compare, like, metric
from parity.harness.ledger import Entry, Ledger, Place
from parity.harness.schema import Rung
from parity.harness.sources import recorder_hash
from parity.harness.states import Stale
from parity.harness.taps import Names, Trace


@dataclass
class Record:
    """What one test has done so far; travels to the report as plain data."""

    test: str
    reproduce: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    elsewhere: dict[str, Any] = field(default_factory=dict)  # platform flags that differ from a case's
    controls: int = 0


@dataclass
class Opened:
    """A case with the ledger's key and the rung of the test that opened it."""

    case: Case
    key: str
    rung: Rung


@dataclass
class Oracle:
    """`oracle(family, case)`: the case, checked, with its flags set until the test ends."""

    root: Path
    search: Sequence[Path]
    record: Record
    stack: ExitStack
    opened: dict[int, Opened] = field(default_factory=dict)

    def __call__(self, family: str, case: str, *, key: str | None = None, rung: Rung = "tap") -> Case:
        """Load a case for the registry key under test, by default the family's name.

        Raises `Stale` if its recorder has changed, `Refused` if a flag does not take, `CaseError` if it is damaged.
        """
        found = load_case(self.root, family, case, search=self.search)
        self.record.keys.append(key or family)
        live = recorder_hash(self.root / family)
        if live != found.manifest.recorder:
            raise Stale(
                f"{found.name} was recorded by another version of its recorder or env.toml "
                f"({found.manifest.recorder[:12]}, now {live[:12]}); "
                f"record it again: toolkit oracle record {family}/{case}"
            )
        self.stack.enter_context(numerics.applied(found.manifest.settable))
        self.record.elsewhere |= found.elsewhere()
        self.opened[id(found)] = Opened(found, key or family, rung)
        return found

    def of(self, case: Case) -> Opened:
        """The key and rung under which this test opened a case."""
        return self.opened.get(id(case)) or Opened(case, case.manifest.family, "tap")


@dataclass
class Check:
    """`check(case, tap, tensor)`: compare with the case as the ledger says, keep the row, fail if it is out."""

    ledger: Ledger
    oracle: Oracle
    record: Record
    bisecting: bool = False

    def __call__(
        self, case: Case, tap: str, actual: Tensor, *, name: str | None = None, squeeze: bool = False
    ) -> Result:
        """Compare a tensor with the case's tensor `tap`; fails unless it is within the ledger's bound.

        `name` is the ledger's name of the gate, by default the tap. `squeeze`: dimensions of size 1 do not count, for
        ports that pack a batch of one.
        """
        result = self.measure(case, tap, actual, name=name, squeeze=squeeze)
        assert result, str(result)
        return result

    def measure(
        self, case: Case, tap: str, actual: Tensor, *, name: str | None = None, squeeze: bool = False
    ) -> Result:
        """As calling, but a failed result is returned, not raised; the row is kept all the same."""
        entry, place = self._entry(case, name or tap, actual)
        row, whole = case.entry(tap), actual.detach().cpu()
        if squeeze:
            whole = like(torch.empty(row.shape, device="meta"), whole)
        fits = tuple(whole.shape) == row.shape
        given = sampled(whole.contiguous(), row.stride) if fits else whole
        by, bound = entry.gate(portable=bool(self.record.elsewhere)) if entry else ("max_abs", 0.0)
        result = compare(case[tap], given, by, bound)
        if result and bound == 0.0 and row.stride > 1 and tensor_hash(whole) != row.sha256:
            result = _failed(result, "the recorded sample is equal, but the whole tensor is not")
        return self._keep(case, place, entry, result)

    def value(self, case: Case, name: str, observed: float, by: str, *, device: str = "cpu") -> Result:
        """Hold one number (a word error rate, a join) to the ledger's bound; `by` is its metric."""
        place = Place(self.oracle.of(case).key, case.manifest.case, name, "float64", device)
        entry = self.ledger.find(place)
        chosen = metric(entry.metric if entry else by)
        bound = entry.gate(portable=bool(self.record.elsewhere))[1] if entry else 0.0
        result = Result(chosen.name, observed, bound, chosen.better, chosen.rounded(observed))
        result = self._keep(case, place, entry, result)
        assert result, str(result)
        return result

    def taps(
        self,
        case: Case,
        given: Trace | Mapping[str, Tensor],
        *,
        names: Names | None = None,
        squeeze: bool = False,
    ) -> list[Result]:
        """Compare every given tap that the case knows, in execution order; fails once, after all."""
        tensors = given.tensors() if isinstance(given, Trace) else given
        known = [(tap, t) for ours, t in tensors.items() if (tap := (names or Names()).theirs(ours)) in case]
        assert known, f"{case.name}: no tap of the port has a name that the case knows"
        results = [self.measure(case, tap, tensor, squeeze=squeeze) for tap, tensor in known]
        bad = [result for result in results if not result]
        assert not bad, self._table(bad, len(results))
        return results

    def network(
        self,
        case: Case,
        module: nn.Module,
        run: Callable[[], Any],
        *,
        rules: Sequence[tuple[str, str]] = (),
        prefix: str = "",
        adapters: Mapping[str, Adapter] | None = None,
        squeeze: bool = False,
    ) -> list[Result]:
        """Run a network under taps and compare them all; with `--parity-bisect` a failure names the wrong layer."""
        bisector = Bisector(case, module, Names(rules), prefix, adapters or {}, self._by(case, squeeze))
        try:
            return self.taps(case, bisector.trace(run), names=bisector.names, squeeze=squeeze)
        except AssertionError as failed:
            hint = "add --parity-bisect to tell layers that are wrong from layers that inherit"
            raise AssertionError(f"{failed}\n{bisector.run(run) if self.bisecting else hint}") from None

    def controls(
        self,
        module: nn.Module,
        run: Callable[[], Any],
        gate: Callable[[], object],
        *,
        invisible: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        """Plant every fault that fits and demand that the gate catches it.

        `invisible` maps (fault, path) to the reason why that fault cannot change any output.
        """
        reasons = invisible or {}
        planted, clean = faults.plantable(module, run), run()
        through = faults.uncaught(module, run, gate)
        missed = {(found.fault, found.path) for found in through}
        hidden = {(found.fault, found.path) for found in through if self._moves(found, clean, run)}
        self.record.controls += len(planted) - len(missed)
        wrong = sorted(missed - hidden - set(reasons))
        assert not wrong, f"the gate lets these faults through: {wrong}"
        caught = sorted(set(reasons) - missed)
        assert not caught, f"said to be invisible, but caught: {caught}"
        assert planted, "no fault of the catalogue fits this network: plant one of your own"

    def _moves(self, fault: faults.Planted, clean: Any, run: Callable[[], Any]) -> bool:
        """Where the wider portable bound holds, under which small faults pass: whether a fault moves anything."""
        if not self.record.elsewhere:
            return False
        with fault.plant():
            return not _same(clean, run())

    def _by(self, case: Case, squeeze: bool) -> Callable[[str, Tensor, Tensor], Result]:
        def by(tap: str, expected: Tensor, actual: Tensor) -> Result:
            entry, _ = self._entry(case, tap, actual)
            rule = entry.gate(portable=bool(self.record.elsewhere)) if entry else ("max_abs", 0.0)
            return compare(expected, like(expected, actual) if squeeze else actual, *rule)

        return by

    def _entry(self, case: Case, tap: str, actual: Tensor) -> tuple[Entry | None, Place]:
        key = self.oracle.of(case).key
        place = Place(key, case.manifest.case, tap, dtype_name(actual.dtype), actual.device.type)
        return self.ledger.find(place), place

    def _keep(self, case: Case, place: Place, entry: Entry | None, result: Result) -> Result:
        result = self._judged(place, entry, result).named(".".join(place[:3]), self.record.reproduce)
        good = "portable" if self.record.elsewhere else "pass"
        self.record.rows.append(
            {
                **place._asdict(),
                **_entry_columns(entry, result),
                "test": self.record.test,
                "rung": self.oracle.of(case).rung,
                "state": good if result else "fail",
                "recorded": str(case.manifest.recorded.get("date", "")),
                "message": "" if result else str(result),
            }
        )
        return result

    def _judged(self, place: Place, entry: Entry | None, result: Result) -> Result:
        """A comparison without an entry, or with one that breaks the rules, does not pass."""
        if result.reason:
            return result
        if entry is None:
            seen = f"{result.metric} {result.observed:.6g}"
            return _failed(result, f"{seen}, and the ledger has no {place.header()}")
        if faulty := entry.faults():
            return _failed(result, f"the ledger's {entry.place.header()}: {'; '.join(faulty)}")
        return result

    def _table(self, bad: Sequence[Result], total: int) -> str:
        shown = "\n".join(str(result) for result in bad[:5])
        more = f"\n... and {len(bad) - 5} more" if len(bad) > 5 else ""
        return f"{len(bad)} of {total} taps are out of bounds, the first:\n{shown}{more}"


def _entry_columns(entry: Entry | None, result: Result) -> dict[str, Any]:
    """The columns of a row that come from the result and from its entry."""
    columns: dict[str, Any] = {name: getattr(result, name) for name in ("metric", "better", "observed", "passing")}
    if entry is None:
        return {**columns, "bound": None, "entry": None}
    slack = metric(result.metric).slack(result.observed, result.bound) if result else None
    about = {name: getattr(entry, name) for name in ("reason", "hardware", "date")}
    return {**columns, **about, "bound": result.bound, "slack": slack, "entry": list(entry.place)}


def _failed(result: Result, reason: str) -> Result:
    return Result(**{**vars(result), "reason": reason})


def _same(one: Any, other: Any) -> bool:
    """Equal bits, of tensors or of anything that holds some."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)
