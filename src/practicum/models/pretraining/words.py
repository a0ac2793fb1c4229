"""Random words, names, numbers and lists for generated text: nothing in them has a meaning that could be learned."""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random

COMMON_TEXT = (
    "able about above across after again air all along also always animal around ask back ball bank base bear beat "
    "before begin below best better big bird black blue boat body bone book both bottle bottom branch bread bridge "
    "bright brother brown build burn busy cake call camp candle carry case castle chair change cheap check child "
    "choose circle city clean clear climb clock close cloud coat cold color come cook copper corner cost count "
    "country cover cross cup cut daily dance dark day deep desk dinner door draw dress drink drive drop dry early "
    "earth east easy edge eight empty engine enter even evening exact eye face fall family farm fast father field "
    "fill find fine finger fire first fish five flat floor flower fly fold follow foot forest fork form four free "
    "fresh friend front fruit full game garden gate gather glass gold good grass green ground group guess hair half "
    "hall hammer hand happy hard head hear heavy help high hill hold hole home horse hot hour house ice idea inside "
    "iron island join jump keep kind king kitchen knife lake lamp land large last late laugh leaf learn left letter "
    "level lift light line list listen little long loud low machine make map mark market meal measure meet metal "
    "middle milk mind mirror money month moon morning mother mountain mouth move music nail near neck needle new "
    "night nine noise north nose note number ocean off oil old open orange order outside oven paint paper park part "
    "pass path pencil people phone picture piece pipe place plain plan plant plate play pocket point pool post pot "
    "press price print proud pull push quick quiet rain raise reach ready red remove rest rice rich ride right ring "
    "rise river road rock roll roof room root rope round row rule run sail salt sand save school sea seat second "
    "seed sell send serve seven shape sharp sheep ship shirt shoe shop short shoulder show side silver sing sister "
    "six size skin sky sleep slow small smoke smooth snow soap soft song sound soup south space spoon spring square "
    "stand star start station stay steel step stick stone stop store storm story straight street strong sugar "
    "summer sun sweet swim table tail take tall tea ten tent thick thin three throw ticket time tire title today "
    "tooth top touch tower town track trade train travel tree truck turn twelve two uncle under up use valley view "
    "visit voice wait walk wall warm wash watch water wave way wear weather week west wet wheel white wide wild "
    "wind window wine winter wire wood word work world write yard year yellow young zero"
)
COMMON = COMMON_TEXT.split()
CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"
SYLLABLES = [first + vowel + last for first in CONSONANTS for vowel in VOWELS for last in ("", "n", "r", "l", "st")]
PUNCTUATION = [*",.;:!?-+*/=<>()[]{}#@&%$|~_^'\""]
SEPARATORS = (" ", ", ", "; ", " | ", "\n", " - ", ",", " / ", " . ", " -> ")


class Words:
    """Draws words of several sorts from one random state; `pieces` are words of the tokenizer's own vocabulary."""

    def __init__(self, rng: Random, pieces: list[str]) -> None:
        self.rng = rng
        self.pieces = pieces

    def letters(self, shortest: int = 2, longest: int = 7) -> str:
        return "".join(self.rng.choices(string.ascii_lowercase, k=self.rng.randint(shortest, longest)))

    def invented(self) -> str:
        """A word of one to three syllables that can be pronounced."""
        return "".join(self.rng.choices(SYLLABLES, k=self.rng.randint(1, 3)))

    def word(self) -> str:
        draw = self.rng.random()
        if draw < 0.45:
            return self.rng.choice(COMMON)
        if draw < 0.7:
            return self.rng.choice(self.pieces)
        return self.invented() if draw < 0.87 else self.letters()

    def number(self, largest: int = 0) -> str:
        return str(self.rng.randint(0, largest or self.rng.choice((9, 30, 99, 99, 999, 5000, 99999))))

    def code(self) -> str:
        """A short identifier of letters and digits, such as b12, 4f7a or x_3."""
        rng = self.rng
        draw = rng.random()
        if draw < 0.3:
            return rng.choice(string.ascii_letters) + str(rng.randint(1, 99))
        if draw < 0.6:
            return "".join(rng.choices("0123456789abcdef", k=rng.randint(3, 8)))
        if draw < 0.8:
            return self.word() + rng.choice("_-.") + str(rng.randint(1, 99))
        return rng.choice("_-.").join((self.word(), self.word()))

    def phrase(self, longest: int = 4) -> str:
        """One or several words, mostly in small letters, sometimes as a title, in capitals or joined."""
        rng = self.rng
        words = [self.word() for _ in range(rng.randint(1, longest))]
        draw = rng.random()
        if draw < 0.6:
            return " ".join(words)
        if draw < 0.75:
            return " ".join(word.capitalize() for word in words)
        if draw < 0.85:
            return " ".join([words[0].capitalize(), *words[1:]])
        if draw < 0.92:
            return rng.choice("_-").join(words)
        if draw < 0.96:
            return " ".join([*words, self.number(99)])
        return " ".join(words).upper()

    def value(self) -> str:
        draw = self.rng.random()
        if draw < 0.35:
            return self.number()
        if draw < 0.5:
            return self.code()
        if draw < 0.58:
            return f"{self.number(99)}.{self.rng.randint(0, 99):02d}"
        return self.phrase(2)

    def symbol(self) -> str:
        """One element of a sequence: a word, a number, a mark of punctuation or a code."""
        draw = self.rng.random()
        if draw < 0.5:
            return self.word()
        if draw < 0.75:
            return self.number(99)
        return self.rng.choice(PUNCTUATION) if draw < 0.9 else self.code()

    def distinct(self, draw_one: Callable[[], str], count: int) -> list[str]:
        """`count` different texts of a function without arguments, in the order in which they were drawn."""
        texts: dict[str, None] = {}
        while len(texts) < count:
            texts[draw_one()] = None
        return list(texts)

    def similar(self, text: str) -> str:
        """A text that differs from the given one in a word, an ending or a number: a key that is easily confused."""
        rng = self.rng
        parts = text.split(" ")
        draw = rng.random()
        if draw < 0.4 and len(parts) > 1:
            parts[rng.randrange(len(parts))] = self.word()
            return " ".join(parts)
        if draw < 0.6:
            return f"{text} {self.number(9)}"
        return f"{text} {self.word()}" if draw < 0.8 else f"{self.word()} {text}"

    def keys(self, count: int) -> list[str]:
        """Different phrases; sometimes several of them resemble each other."""
        rng = self.rng
        longest = rng.choice((1, 1, 2, 3, 4))
        same_length = rng.random() < 0.35
        phrases: dict[str, None] = {}
        while len(phrases) < count:
            if phrases and same_length and rng.random() < 0.5:
                phrases[self.similar(rng.choice(list(phrases)))] = None
            else:
                phrases[self.phrase(longest)] = None
        return list(phrases)

    def count(self, shortest: int, longest: int) -> int:
        """A length: short ones more often than long ones."""
        return min(longest, shortest + int(self.rng.expovariate(4 / (longest - shortest + 1))))

    def separator(self) -> str:
        return self.rng.choice(SEPARATORS)
