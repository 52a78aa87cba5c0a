"""Texts with a few characters changed, as what a reader of hostile text is given."""

import random


def edited(text: str, choose: random.Random, characters: str, replacements: str = "") -> str:
    """The text after one to three edits: one of ``characters`` is put in, or a character is left out or replaced, by
    one of ``replacements`` or without these by any of ASCII.
    """
    made = list(text)
    for _ in range(choose.randint(1, 3)):
        at = choose.randrange(len(made))
        match choose.randrange(3):
            case 0:
                made[at] = choose.choice(replacements) if replacements else chr(choose.randrange(1, 127))
            case 1:
                del made[at]
            case 2:
                made.insert(at, choose.choice(characters))
    return "".join(made)
