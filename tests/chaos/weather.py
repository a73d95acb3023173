"""What may go wrong on the way between a part and the server that it calls."""

import random
from dataclasses import dataclass
from enum import StrEnum


class Weather(StrEnum):
    """One at a time on each link."""

    CALM = "calm"
    DELAYS = "delays"
    CUTS = "cuts before the server"
    LOSES = "cuts after the server"
    TEARS = "cuts within the answer"
    DUPLICATES = "sends reads twice"
    CONFLICTS = "answers 409"
    EXPIRES = "answers 410"
    LIMITS = "answers 429"
    FAILS = "answers 500"
    ENDS_WATCHES = "ends watches"
    MUTES_WATCHES = "mutes watches, then cuts them"
    THROTTLES = "throttles"


DELAY_S = (0.05, 3.0)
THROTTLED_BYTES_PER_S = 200_000
FAULTS = tuple(each for each in Weather if each is not Weather.CALM)
# what a V-IPU controller and a proxy can do: they have neither watches nor versions
PLAIN_FAULTS = (
    Weather.DELAYS, Weather.CUTS, Weather.LOSES, Weather.TEARS, Weather.DUPLICATES, Weather.FAILS, Weather.THROTTLES,
)  # fmt: skip
READS = ("GET", "HEAD")
WATCHES = (Weather.ENDS_WATCHES, Weather.MUTES_WATCHES)


@dataclass
class Link:
    """The weather between two parts now. share: of the requests that meet it. met: how many have."""

    rng: random.Random
    weather: Weather = Weather.CALM
    share: float = 1.0
    met: int = 0

    def meets(self, method: str, *, watch: bool) -> Weather:
        """What befalls a request."""
        weather = self.weather
        if weather is Weather.MUTES_WATCHES and watch:
            self.met += 1
            return weather
        if weather is Weather.CALM or weather in WATCHES or self.rng.random() >= self.share:
            return Weather.CALM
        if method in READS:
            applies = weather is not Weather.CONFLICTS and (weather is not Weather.EXPIRES or watch)
            applies = applies and not (weather is Weather.DUPLICATES and watch)
        else:
            # who sends a write again decides that himself: it is not the network's to do
            applies = weather not in (Weather.EXPIRES, Weather.DUPLICATES)
        if not applies:
            return Weather.CALM
        self.met += 1
        return weather
