"""Text: cutting it for speech, and what a chat port needs between messages and an answer.

A chat port takes `chat.ChatKnobs` (or a subclass) as its knobs and, for each piece:

- `prepare`: renders the messages with `knobs.offered` tools; `text = knobs.grammar(markup, thinking=...)` and, unless
  None, `grammars.check(text, param)`, so that a schema that cannot be kept to is a 400;
- `begin`: `sampler.set(slot, knobs.sampling(), seed)`; `ChatAnswer(...)` in the row's state; with a grammar,
  `constraint = grammars.begin(text)` and `sampler.allow(slot, constraint.allowed())`;
- `offer`: a row with a grammar does not repeat (what may follow is known once its token is), the others may;
- `settle`: `answer.feed(token)` gives the `Delta` to emit; `answer.stopped` ends the row; with a grammar,
  `constraint.accept(token)`, then `allow` again. At the end `answer.finish()` gives the last delta, and
  `answer.finish_reason` and `answer.tokens` go out as "info".
"""
