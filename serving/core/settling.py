"""Around a step: seats leave their queue, the batch is built; verdicts come back, resources commit, items leave."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch

from serving.core.contract import Settled, Verdict
from serving.core.lifecycle import Requests
from serving.core.request import Seat
from serving.core.routing import Router
from serving.core.runtime import Cohort
from serving.core.scheduler import Plan
from serving.core.step import Skipped, Step
from serving.errors import Overloaded, StepFailed, ToolkitError

log = logging.getLogger("toolkit.engine")

AGAIN, DONE = int(Verdict.AGAIN), int(Verdict.DONE)


class Settler:
    """Turns plans into steps and settled steps into new offers."""

    def __init__(self, router: Router, requests: Requests, die: Callable[[str], None]) -> None:
        self._router = router
        self._requests = requests
        self._die = die

    def ask(self, seat: Seat) -> None:
        """Ask the seat's node what the row could do, now that something changed."""
        if seat.done or seat.inflight or (seat.queued and seat.offer is not None and seat.offer.repeats):
            return
        row = seat.row
        for port, buffer in seat.inputs.items():
            row.chunks[port] = buffer.ready()
            row.ended[port] = buffer.finished
        try:
            offer = seat.node.node.offer(row)
        except Exception as error:
            self._requests.fail(seat.piece.request, self._blame(seat, error))
            return
        if seat.queued or seat.blocked:
            if offer is not None and seat.offer is not None and offer.key == seat.offer.key:
                seat.offer = offer
            return
        seat.offer = offer
        if offer is not None:
            self.queue(seat)

    def queue(self, seat: Seat) -> None:
        """The seat's offer may be planned, unless whoever takes its output is full."""
        if seat.node.limited and any(outlet.full() for outlets in seat.outputs.values() for outlet in outlets):
            seat.blocked = True
            return
        seat.node.enqueue(seat)

    def unblock(self, seat: Seat) -> None:
        """There is room downstream again."""
        if seat.blocked and not (seat.done or seat.piece.leaving or seat.piece.parked):
            seat.blocked = False
            self.queue(seat)

    def launch(self, plan: Plan) -> Step | None:
        """Take the seats from their queue and build the step; None when that failed."""
        group, node = plan.group, plan.group.node
        group.passed = 0
        cohort = self._cohort(plan)
        if cohort is None:
            node.dequeue(group, plan.seats)
        step = Step(plan, cohort)
        for seat in plan.seats:
            seat.inflight += 1
        try:
            step.assemble(plan.units)
        except Exception as error:
            step.error = error
            step.release()
            self._failed(step)
            return None
        if node.inflight and _goes_on(step, node.inflight[-1]):
            step.previous = node.inflight[-1]
        node.inflight.append(step)
        if cohort is None:
            self._run_ahead(plan)
        return step

    def _cohort(self, plan: Plan) -> Cohort | None:
        """The cohort that the step is one of, where its seats may stand in the queue while it runs."""
        group, node = plan.group, plan.group.node
        if node.cohort is None or node.cohort.plan is not plan:
            node.cohort = None
            whole = len(plan.seats) == len(group.seats) and not node.limited
            if whole and all(seat.offer.repeats and not seat.solo for seat in plan.seats):  # type: ignore[union-attr]
                node.cohort = Cohort(plan, node.version)
        return node.cohort

    def _run_ahead(self, plan: Plan) -> None:
        """Seats whose next offer is known stand in the queue again before this step has run."""
        ahead = [seat for seat in plan.seats if seat.offer.repeats and not seat.solo]  # type: ignore[union-attr]
        if plan.group.node.limited:
            for seat in ahead:
                self.queue(seat)
        elif ahead:
            plan.group.node.enqueue_all(plan.group.key, ahead)

    def settle(self, step: Step, seconds: float) -> None:
        """A step has run: verdicts, resources, emissions."""
        step.node.inflight.remove(step)
        step.release()
        if step.error is None:
            step.node.took(seconds)
            step.node.model.estimate()
            try:
                settled = step.node.node.settle(step.batch, step.outputs)
            except Exception as error:
                step.error = error
        if step.error is not None:
            self._failed(step)
            return
        cohort = step.cohort
        held = cohort is not None and cohort.holds(cohort.plan.group)
        if held and not np.count_nonzero(settled.verdicts):  # all AGAIN
            self._settle_steady(step, settled)
        else:
            self._settle_each(step, settled)

    def _settle_steady(self, step: Step, settled: Settled) -> None:
        """Every row goes on, and stands in the queue already."""
        assert step.cohort is not None
        self._commit(step, settled.kept, [])
        for port, items in settled.emits.items():
            self._router.emit_steady(step.cohort, step.seats, port, items)
        for seat in step.seats:
            seat.inflight -= 1

    def _settle_each(self, step: Step, settled: Settled) -> None:
        seats = step.seats
        void = [seat.done for seat in seats]
        self._commit(step, settled.kept, void)
        for port, items in settled.emits.items():
            self._router.emit(seats, port, items, void)
        for buffer, _ in step.takes:
            self._router.drained(buffer)
        for seat, verdict in zip(seats, settled.verdicts.tolist(), strict=True):
            seat.inflight -= 1  # one by one: whoever has not had its verdict is busy, and is not parked
            self._verdict(seat, verdict)

    def _verdict(self, seat: Seat, verdict: int) -> None:
        seat.solo = False
        if seat.done:
            self._requests.settled(seat.piece)
        elif verdict == DONE:
            self._router.finish(seat)
            self._requests.finished(seat)
        elif verdict == AGAIN and seat.offer.repeats:  # type: ignore[union-attr]
            if not seat.queued and not seat.blocked:
                self.queue(seat)
        else:
            seat.offer = None
            self._router.woken.append(seat)

    def _commit(self, step: Step, kept: np.ndarray | None, void: list[bool]) -> None:
        """Count what the step wrote; rows that were done before it count nothing."""
        if kept is None:
            kept = step.batch.units
        if any(void):
            kept = np.where(void, 0, kept)
        for _, resource, write in step.node.uses[: step.planned]:
            if write:
                resource.commit(step.batch, kept)

    def _failed(self, step: Step) -> None:
        """Undo a step that raised. Its rows run alone once, when that is possible; a row that fails alone is guilty."""
        error = step.error
        assert error is not None
        if step.planned:
            self._commit(step, np.zeros(len(step.seats), np.int64), [False] * len(step.seats))
        for buffer, state in reversed(step.takes):
            buffer.restore(state)
        skipped = isinstance(error, Skipped)
        if not skipped:
            log.warning("step of %s failed over %d rows", step.node.name, len(step.seats), exc_info=error)
        alone = len(step.seats) == 1 or not step.node.rollback
        for seat in step.seats:
            seat.inflight -= 1
            if seat.done:
                self._requests.settled(seat.piece)
            elif alone and not skipped:
                self._requests.fail(seat.piece.request, self._blame(seat, error))
            elif not skipped:
                self._isolate(seat)
            else:
                self._requeue(seat)
        if _sticky(error):
            self._die(f"{type(error).__name__}: {error}")

    def _requeue(self, seat: Seat) -> None:
        """The seat may be planned again once no step holds it: one that does now will be skipped as well."""
        if seat.inflight and seat.queued:
            seat.node.withdraw(seat)
        elif not (seat.inflight or seat.queued or seat.blocked):
            self.queue(seat)

    def _isolate(self, seat: Seat) -> None:
        """The seat's next step runs it alone, once no step holds it."""
        if seat.queued:
            seat.node.withdraw(seat)
        seat.solo = True
        if not (seat.inflight or seat.blocked):
            self.queue(seat)

    def _blame(self, seat: Seat, error: BaseException) -> ToolkitError:
        if isinstance(error, ToolkitError):
            return error
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return Overloaded("Out of memory.", code="out_of_memory")
        return StepFailed(f"{seat.node.name} failed: {type(error).__name__}: {error}")


def _goes_on(step: Step, before: Step) -> bool:
    """The step, whose seats are counted as in flight, needs what the one before it makes."""
    same = step.cohort is not None and before.cohort is step.cohort
    return same or any(seat.inflight > 1 for seat in step.seats)


def _sticky(error: BaseException) -> bool:
    """The device will not run anything any more."""
    return isinstance(error, torch.AcceleratorError)
