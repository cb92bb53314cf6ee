"""When each word was said: dynamic time warping over the attention of the alignment heads.

As openai-whisper does it: softmax over the window's frames, normalised over the tokens, a median filter of 7 over
time, the mean of the heads, the cheapest monotone path; then words, punctuation joined to its neighbour, and words
that last too long at pauses cut short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.whisper.tokenizer import Tokenizer

FILTER_WIDTH = 7
TOKENS_PER_SECOND = 50
SENTENCE_ENDS = ".。!！?？"


@dataclass(slots=True)
class Timing:
    """A word, its tokens, its times in seconds from the window's start, and its mean probability."""

    word: str
    tokens: list[int]
    start: float
    end: float
    probability: float


def align(
    scores: Tensor,
    chances: np.ndarray,
    text: Sequence[int],
    lead: int,
    frames: int,
    tokenizer: Tokenizer,
    language: str,
) -> list[Timing]:
    """Timings of the words of `text`.

    `scores` [T, heads, L] and `chances` [T] are the aligner's items for `lead` start tokens, "no timestamps", the
    text and the end token; `frames`: mel frames of the window that are sound.
    """
    words, groups = tokenizer.words([*text, tokenizer.eot], language)
    if len(groups) <= 1:
        return []
    path_text, path_time = warp(-cost_matrix(scores, frames)[lead:-1].double().numpy())
    starts = np.diff(path_text, prepend=-1) > 0
    moments = path_time[starts] / TOKENS_PER_SECOND
    bounds = np.cumsum([0, *map(len, groups[:-1])])
    said = chances[lead : lead + len(text)].astype(np.float64)
    return [
        Timing(word, group, moments[first], moments[last], float(np.mean(said[first:last])))
        for word, group, first, last in zip(words, groups, bounds[:-1], bounds[1:], strict=False)
    ]


def cost_matrix(scores: Tensor, frames: int) -> Tensor:
    """How much each token [T] attends to each frame of 20 ms [frames // 2]."""
    weights = scores.transpose(0, 1)[:, :, : frames // 2].softmax(-1)  # [heads, T, frames]
    std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    return median_filter((weights - mean) / std, FILTER_WIDTH).mean(0)


def median_filter(x: Tensor, width: int) -> Tensor:
    """Running median over the last axis of [heads, T, frames], ends reflected; too short an axis stays as it is."""
    half = width // 2
    if x.shape[-1] <= half:
        return x
    padded = F.pad(x, (half, half, 0, 0), mode="reflect")
    return padded.unfold(-1, width, 1).sort().values[..., half]


def warp(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cheapest monotone path through cost [N, M] float64: its row and column indices.

    Anti-diagonal by anti-diagonal; a tie prefers the column step, as the reference does.
    """
    n, m = cost.shape
    total = np.full((n + 1, m + 1), np.inf)
    move = np.full((n + 1, m + 1), 2, np.int8)  # 0: both, 1: row, 2: column
    total[0, 0] = 0
    for diagonal in range(2, n + m + 1):
        i = np.arange(max(1, diagonal - m), min(n, diagonal - 1) + 1)
        j = diagonal - i
        both, row, column = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        step = np.where((both < row) & (both < column), 0, np.where((row < both) & (row < column), 1, 2))
        total[i, j] = cost[i - 1, j - 1] + np.choose(step, (both, row, column))
        move[i, j] = step
    return _back(move)


def _back(move: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    i, j = move.shape[0] - 1, move.shape[1] - 1
    move[0, :], move[:, 0] = 2, 1
    path = []
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = move[i, j]
        i -= step != 2
        j -= step != 1
    rows, columns = np.array(path[::-1]).T
    return rows, columns


def median_duration(timings: Sequence[Timing]) -> float:
    """The median of the words that last at all, at most 0.7 s."""
    lasting = [t.end - t.start for t in timings if t.end != t.start]
    return min(0.7, float(np.median(lasting))) if lasting else 0.0


def shorten_at_sentence_ends(timings: Sequence[Timing], longest: float) -> None:
    """A pause after a sentence is attributed to a word; take it off."""
    for previous, timing in pairwise(timings):
        if timing.end - timing.start > longest:
            if timing.word in SENTENCE_ENDS:
                timing.end = timing.start + longest
            elif previous.word in SENTENCE_ENDS:
                timing.start = timing.end - longest


def merge_punctuation(timings: Sequence[Timing], prepended: str, appended: str) -> None:
    """Join opening marks to the word after and closing marks to the word before; the emptied ones stay, wordless."""
    following = len(timings) - 1
    for i in range(len(timings) - 2, -1, -1):
        mark, word = timings[i], timings[following]
        if mark.word.startswith(" ") and mark.word.strip() in prepended:
            word.word, word.tokens = mark.word + word.word, mark.tokens + word.tokens
            mark.word, mark.tokens = "", []
        else:
            following = i
    previous = 0
    for i in range(1, len(timings)):
        word, mark = timings[previous], timings[i]
        if not word.word.endswith(" ") and mark.word in appended:
            word.word, word.tokens = word.word + mark.word, word.tokens + mark.tokens
            mark.word, mark.tokens = "", []
        else:
            previous = i
