"""Windows that a hallucination spoils: skip the silence around segments whose words nobody could have said so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.whisper.config import FRAMES_PER_SECOND
from models.whisper.segments import Cut, Draft, Spoken, Window, last_word_end


@dataclass(frozen=True, slots=True)
class Silence:
    """openai-whisper's rule, with its `threshold` in seconds. `marks`: words that do not count."""

    threshold: float
    marks: str
    content_frames: int

    def improbability(self, word: Spoken) -> float:
        """Rises with words that are improbable, too short or too long."""
        length = word.end - word.start
        unlikely = 1.0 if word.probability < 0.15 else 0.0
        return unlikely + max(0.0, (0.133 - length) * 15) + max(0.0, length - 2.0)

    def anomalous(self, draft: Draft | None) -> bool:
        """Whether the first eight words are improbable taken together."""
        if draft is None or not draft.words:
            return False
        words = [word for word in draft.words if word.word not in self.marks][:8]
        score = sum(map(self.improbability, words))
        return score >= 3 or score + 0.01 >= len(words)

    def apply(self, window: Window, found: Cut, spoken_until: float) -> bool:
        """Move `found.seek` past silence and drop hallucinated segments; False: drop the whole window."""
        end = last_word_end(found.drafts)
        if not found.closed and end is not None and end > window.start:
            near = window.stop - end <= self.threshold
            found.seek = window.seek + window.size if near else round(end * FRAMES_PER_SECOND)
        first = _with_words(found.drafts)
        if self.anomalous(first) and first is not None:
            gap = first.start - window.start
            if gap > self.threshold:
                found.seek = window.seek + round(gap * FRAMES_PER_SECOND)
                return False
        self._drop(window, found, spoken_until)
        return True

    def _drop(self, window: Window, found: Cut, spoken_until: float) -> None:
        """Cut off at the first anomalous segment that has silence, or more of its kind, on both sides."""
        for i, draft in enumerate(found.drafts):
            if not draft.words:
                continue
            if self.anomalous(draft) and self._alone(window, found.drafts[i + 1 :], draft, spoken_until):
                found.seek = round(max(window.start + 1, draft.start) * FRAMES_PER_SECOND)
                if self.content_frames / FRAMES_PER_SECOND - draft.end < self.threshold:
                    found.seek = self.content_frames
                del found.drafts[i:]
                return
            spoken_until = draft.end

    def _alone(self, window: Window, after: Sequence[Draft], draft: Draft, spoken_until: float) -> bool:
        following = _with_words(after)
        next_start = window.start + window.duration if following is None else following.words[0].start
        before = (
            draft.start - spoken_until > self.threshold
            or draft.start < self.threshold
            or draft.start - window.start < 2.0
        )
        return before and (
            next_start - draft.end > self.threshold or self.anomalous(following) or window.stop - draft.end < 2.0
        )


def _with_words(drafts: Sequence[Draft]) -> Draft | None:
    return next((draft for draft in drafts if draft.words), None)
