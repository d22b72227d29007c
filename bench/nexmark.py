"""Makes the events of NEXMark, people who open auctions and bid in them: always the same ones for the same `Events`.

Of 50 events one is a person, three are auctions and 46 are bids, as its description says, and what they are about is
drawn as there: most bids are for the hot auction of the moment, and by its hot bidder, ids may be of people and
auctions that come up to ten later, and an auction is open for as long as it takes a hundred others to be opened, on
average. Each event has a time of its own, in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

FIRST_US = 1_700_000_000_000_000
SIDE_ROWS = 10_000
PERSON, AUCTION, BID = "person", "auction", "bid"
TABLES: Mapping[str, str] = {
    PERSON: "ts TIMESTAMP, id BIGINT, name VARCHAR(40), email VARCHAR(40), credit_card VARCHAR(20), city VARCHAR(20), "
            "state VARCHAR(2), extra VARCHAR(400)",
    AUCTION: "ts TIMESTAMP, id BIGINT, item_name VARCHAR(40), description VARCHAR(120), initial_bid BIGINT, "
             "reserve BIGINT, expires TIMESTAMP, seller BIGINT, category BIGINT, extra VARCHAR(1000)",
    BID: "ts TIMESTAMP, auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR(20), url VARCHAR(120), "
         "extra VARCHAR(200)",
}

_CYCLE, _PEOPLE, _AUCTIONS = 50, 1, 3
_FIRST_ID, _FIRST_CATEGORY, _CATEGORIES = 1000, 10, 5
_ACTIVE_PEOPLE, _OPEN_AUCTIONS, _LEAD, _HOT = 1000, 100, 10, 100
_HOT_SELLER, _HOT_AUCTION, _HOT_BIDDER, _HOT_CHANNEL = 0.75, 0.5, 0.75, 0.5
_CHANNELS, _WITH_CHANNEL_ID = 10_000, 0.9
_PERSON_BYTES, _AUCTION_BYTES, _BID_BYTES = 200, 500, 100
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent",
           "Cheyenne")
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_POOL = 1 << 20
_TIME = pa.timestamp("us")

_Ints = npt.NDArray[np.int64]
Tables = Mapping[str, pa.Table]


@dataclass(frozen=True, slots=True)
class Events:
    """`rate`: events per second of their time. `late_s`: each comes up to so many seconds after its time."""

    count: int
    rate: int = 10_000
    late_s: float = 0.0
    seed: int = 1


def side_input() -> pa.Table:
    """Returns the table that bids look up in: a text for each key below SIDE_ROWS."""
    keys = pa.array(range(SIDE_ROWS), pa.int64())
    return pa.table({"key": keys, "value": keys.cast(pa.string())})


def arrivals(events: Events, at_once: int) -> Iterator[Tables]:
    """Yields the rows of each table in the order in which they come, those of so many events at a time."""
    tables = all_rows(events)
    for first in range(0, events.count, at_once):
        yield {name: _between(rows, first, first + at_once) for name, rows in tables.items()}


def all_rows(events: Events) -> Tables:
    """Returns the rows of each table in the order in which they come, with their `place` among all events."""
    rng = np.random.default_rng(events.seed)
    number = np.arange(events.count, dtype=np.int64)
    time_us = FIRST_US + number * 1_000_000 // events.rate
    place = np.empty(events.count, np.int64)
    place[np.argsort(time_us + rng.integers(0, int(events.late_s * 1e6) + 1, events.count), kind="stable")] = number
    kind = number % _CYCLE
    rest = kind >= _PEOPLE + _AUCTIONS
    texts = _Texts(rng)
    made = {}
    for name, chosen in ((PERSON, kind < _PEOPLE), (AUCTION, (kind >= _PEOPLE) & ~rest), (BID, rest)):
        own = number[chosen]
        columns = {"ts": pa.array(time_us[chosen], _TIME), **_MAKERS[name](events, own, time_us[chosen], rng, texts)}
        order = np.argsort(place[chosen], kind="stable")
        made[name] = pa.table({**columns, "place": pa.array(place[chosen])}).take(pa.array(order))
    return made


def _between(rows: pa.Table, first: int, end: int) -> pa.Table:
    places = rows.column("place").to_numpy()
    start, stop = np.searchsorted(places, (first, end))
    return rows.drop_columns("place").slice(start, stop - start)


def _people(events: Events, number: _Ints, time_us: _Ints, rng: np.random.Generator,
            texts: _Texts) -> dict[str, pa.Array]:
    count = len(number)
    cards = [_digits(rng.integers(0, 10_000, count), 4) for _ in range(4)]
    columns = {
        "id": pa.array(_newest_person(number) + _FIRST_ID),
        "name": pc.binary_join_element_wise(_any(rng, _FIRST_NAMES, count), _any(rng, _LAST_NAMES, count), " "),
        "email": pc.binary_join_element_wise(
            texts.letters(count, 3, 7), pc.binary_join_element_wise(texts.letters(count, 3, 5), ".com", ""), "@"),
        "credit_card": pc.binary_join_element_wise(*cards, " "),
        "city": _any(rng, _CITIES, count),
        "state": _any(rng, _STATES, count),
    }
    return {**columns, "extra": texts.rest_of(columns, _PERSON_BYTES)}


def _auctions(events: Events, number: _Ints, time_us: _Ints, rng: np.random.Generator,
              texts: _Texts) -> dict[str, pa.Array]:
    count = len(number)
    hot = _newest_person(number) // _HOT * _HOT
    seller = np.where(rng.random(count) < _HOT_SELLER, hot, _any_person(number, rng))
    first_price = _prices(rng, count)
    open_us = _OPEN_AUCTIONS * _CYCLE // _AUCTIONS * 1_000_000 // events.rate
    columns = {
        "id": pa.array(_newest_auction(number) + _FIRST_ID),
        "item_name": texts.letters(count, 3, 20),
        "description": texts.letters(count, 3, 100),
        "initial_bid": pa.array(first_price),
        "reserve": pa.array(first_price + _prices(rng, count)),
        "expires": pa.array(time_us + 1 + rng.integers(0, max(1, 2 * open_us), count), _TIME),
        "seller": pa.array(seller + _FIRST_ID),
        "category": pa.array(_FIRST_CATEGORY + rng.integers(0, _CATEGORIES, count)),
    }
    return {**columns, "extra": texts.rest_of(columns, _AUCTION_BYTES)}


def _bids(events: Events, number: _Ints, time_us: _Ints, rng: np.random.Generator,
          texts: _Texts) -> dict[str, pa.Array]:
    count = len(number)
    newest = _newest_auction(number)
    oldest = np.maximum(newest - _OPEN_AUCTIONS, 0)
    auction = np.where(rng.random(count) < _HOT_AUCTION, newest // _HOT * _HOT,
                       oldest + rng.integers(0, newest - oldest + 1 + _LEAD))
    bidder = np.where(rng.random(count) < _HOT_BIDDER, _newest_person(number) // _HOT * _HOT + 1,
                      _any_person(number, rng))
    names, urls = texts.channels()
    channel = np.where(rng.random(count) < _HOT_CHANNEL, _CHANNELS + rng.integers(0, len(_HOT_CHANNELS), count),
                       rng.integers(0, _CHANNELS, count))
    columns = {
        "auction": pa.array(auction + _FIRST_ID),
        "bidder": pa.array(bidder + _FIRST_ID),
        "price": pa.array(_prices(rng, count)),
        "channel": names.take(pa.array(channel)),
        "url": urls.take(pa.array(channel)),
    }
    return {**columns, "extra": texts.of(count, _BID_BYTES - 32)}


_MAKERS = {PERSON: _people, AUCTION: _auctions, BID: _bids}


def _newest_person(number: _Ints) -> _Ints:
    """Returns which person, from 0, is the newest one when an event comes."""
    return number // _CYCLE * _PEOPLE + np.minimum(number % _CYCLE, _PEOPLE - 1)


def _newest_auction(number: _Ints) -> _Ints:
    """Returns which auction, from 0, is the newest one; before there are any, the first."""
    within = np.minimum(number % _CYCLE - _PEOPLE, _AUCTIONS - 1)
    return np.maximum(number // _CYCLE * _AUCTIONS + np.maximum(within, -1), 0)


def _any_person(number: _Ints, rng: np.random.Generator) -> _Ints:
    people = _newest_person(number) + 1
    active = np.minimum(people, _ACTIVE_PEOPLE)
    return people - active + rng.integers(0, active + _LEAD)


def _prices(rng: np.random.Generator, count: int) -> _Ints:
    return np.round(10.0 ** (rng.random(count) * 6) * 100).astype(np.int64)


def _any(rng: np.random.Generator, values: tuple[str, ...], count: int) -> pa.Array:
    return pa.array(values).take(pa.array(rng.integers(0, len(values), count)))


def _digits(values: _Ints, width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(values).cast(pa.string()), width, "0")


class _Texts:
    """Draws texts: each is a piece of a long one."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._plain = rng.integers(ord("a"), ord("z"), _POOL, endpoint=True).astype(np.uint8)
        self._spaced = np.where(rng.random(_POOL) < 1 / 13, ord("_"), self._plain).astype(np.uint8)

    def of(self, count: int, mean: int | _Ints) -> pa.StringArray:
        """Returns texts of about that length, up to a fifth more or less."""
        fifth = np.round(np.full(count, mean) * 0.2).astype(np.int64)
        return self._pieces(self._plain, np.maximum(mean - fifth + self._rng.integers(0, 2 * fifth + 1), 0))

    def letters(self, count: int, least: int, most: int) -> pa.StringArray:
        """Returns texts of at least and less than so many letters, with underscores among them."""
        return self._pieces(self._spaced, self._rng.integers(least, most, count))

    def rest_of(self, columns: Mapping[str, pa.Array], mean: int) -> pa.StringArray:
        """Returns texts that make rows as long as they are to be on average."""
        taken = sum(pc.binary_length(column).to_numpy() if pa.types.is_string(column.type) else 8
                    for column in columns.values())
        count = len(next(iter(columns.values())))
        return self.of(count, np.maximum(mean - taken, 0))

    def channels(self) -> tuple[pa.StringArray, pa.StringArray]:
        """Returns the names of all channels and their addresses, the hot ones at the end."""
        count = _CHANNELS + len(_HOT_CHANNELS)
        parts = [self.letters(count, 3, 5) for _ in range(3)]
        address = pc.binary_join_element_wise("https://www.nexmark.com", *parts, "item.htm?query=1", "/")
        # The bits of the channel's number in the order from last to first.
        ids = [abs(int(f"{number:032b}"[::-1], 2) - (number % 2 << 32)) for number in range(_CHANNELS)]
        ending = pc.binary_join_element_wise("&channel_id", pa.array(ids).cast(pa.string()), "=")
        has = pa.array(np.append(self._rng.random(_CHANNELS) < _WITH_CHANNEL_ID, np.zeros(len(_HOT_CHANNELS), bool)))
        endings = pc.if_else(has, pa.concat_arrays([ending, pa.array([""] * len(_HOT_CHANNELS))]), "")
        names = pa.array([*(f"channel-{number}" for number in range(_CHANNELS)), *_HOT_CHANNELS])
        return names, pc.binary_join_element_wise(address, endings, "")

    def _pieces(self, pool: npt.NDArray[np.uint8], lengths: _Ints) -> pa.StringArray:
        starts = self._rng.integers(0, _POOL - int(lengths.max(initial=0)), len(lengths))
        ends = np.cumsum(lengths)
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        places = np.arange(offsets[-1], dtype=np.int64) + np.repeat(starts - offsets[:-1], lengths)
        return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(pool[places]))
