"""What is said of several seeds of a row, in one line where it differs in its numbers alone."""

import re
from collections import Counter
from collections.abc import Sequence

NUMBER = re.compile(r"([0-9]+(?:[.,][0-9]+)*%?)")


def by_seed(said: Sequence[tuple[int, str]]) -> list[str]:
    """One line for the seeds of which the same is said, but for its numbers."""
    alike: dict[tuple[int, tuple[str, ...]], list[tuple[int, list[str]]]] = {}
    times: Counter[tuple[int, tuple[str, ...]]] = Counter()
    for seed, text in said:
        parts = NUMBER.split(text)  # words, a number, words, ...
        words = tuple(parts[::2])
        alike.setdefault((times[seed, words], words), []).append((seed, parts))
        times[seed, words] += 1
    return [_in_one_line(members) for members in alike.values()]


def _in_one_line(members: Sequence[tuple[int, list[str]]]) -> str:
    """What the seeds have in common once, from the first number that differs to the last for each of them."""
    who = f"seed{'s' * (len(members) > 1)} {', '.join(str(seed) for seed, _ in members)}"
    texts = [parts for _, parts in members]
    first = texts[0]
    differs = [place for place, part in enumerate(first) if any(parts[place] != part for parts in texts)]
    if not differs:
        return f"{who}: {''.join(first)}"
    begin, end = differs[0], differs[-1] + 1
    each = ("; " if len(differs) > 1 else ", ").join("".join(parts[begin:end]) for parts in texts)
    return f"{who}: {''.join(first[:begin])}{each}{''.join(first[end:])}"
