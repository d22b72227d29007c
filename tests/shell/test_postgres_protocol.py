"""PostgreSQL's protocol without a socket: what may come in which order, logins, texts, COPY, parameters."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kits.basics.extreme_values import CASES, NAMES, quoted

from penstock.common.errors import PenstockError
from penstock.common.passwords import scram_verifier
from penstock.mnode.access.session import SessionState
from penstock.shell.postgres import frontend
from penstock.shell.postgres.conversation import Conversation, Phase
from penstock.shell.postgres.copy_rows import CopyFormat, CopyReader, read_copy, written_row
from penstock.shell.postgres.frontend import ProtocolError
from penstock.shell.postgres.parameter_values import ParameterText, read_parameters
from penstock.shell.postgres.result_values import FLOAT8, INT4, NUMERIC, TIMESTAMPTZ, numeric_bytes
from penstock.shell.postgres.scram_exchange import ScramExchange
from penstock.shell.postgres.statement_text import split_statements
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import Select

MESSAGE_MAX = 10_000
#: No zero bytes, which end texts, and no lone surrogates, which aren't text.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def startup(**parameters: str) -> bytes:
    body = struct.pack("!I", 3 << 16) + b"".join(
        f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
    return struct.pack("!I", len(body) + 4) + body


def open_conversation() -> Conversation:
    conversation = Conversation(MESSAGE_MAX)
    conversation.receive(startup(user="u"))
    assert conversation.next() == frontend.Startup({"user": "u"})
    conversation.logged_in()
    return conversation


def taken(conversation: Conversation, data: bytes) -> list[object]:
    conversation.receive(data)
    found: list[object] = []
    while (one := conversation.next()) is not None:
        found.append(one)
    return found


MESSAGES = st.one_of(
    TEXTS.map(lambda text: (frontend.SimpleQuery(text), message(b"Q", text.encode() + b"\0"))),
    st.tuples(TEXTS, TEXTS, st.lists(st.integers(0, 2**32 - 1), max_size=3)).map(lambda each: (
        frontend.Parse(each[0], each[1], tuple(each[2])),
        message(b"P", f"{each[0]}\0{each[1]}\0".encode() + struct.pack(f"!H{len(each[2])}I", len(each[2]), *each[2])))),
    st.lists(st.none() | st.binary(max_size=9), max_size=3).map(lambda cells: (
        frontend.Bind("p", "s", (1,), tuple(cells), (0, 1)),
        message(b"B", b"p\0s\0\0\1\0\1" + struct.pack("!H", len(cells)) + b"".join(
            b"\xff" * 4 if cell is None else struct.pack("!I", len(cell)) + cell for cell in cells)
            + b"\0\2\0\0\0\1"))),
    st.just((frontend.Sync(), message(b"S"))), st.just((frontend.Execute("p", 7), message(b"E", b"p\0\0\0\0\7"))),
    st.just((frontend.DescribeRequest(True, "p"), message(b"D", b"Pp\0"))),
)


@given(st.lists(MESSAGES, max_size=8), st.data())
def test_messages_come_in_any_pieces(messages: list[tuple[object, bytes]], data: st.DataObject) -> None:
    """However the network cuts them, the same messages come out."""
    whole, found, conversation = b"".join(written for _, written in messages), [], open_conversation()
    while whole:
        size = data.draw(st.integers(1, len(whole)))
        found += taken(conversation, whole[:size])
        whole = whole[size:]
    assert found == [meant for meant, _ in messages]


@given(st.lists(st.binary(max_size=60), max_size=6), st.sampled_from(list(Phase)))
def test_nothing_but_protocol_errors(pieces: list[bytes], phase: Phase) -> None:
    """Whatever bytes come in whatever phase: messages, or an error that says so; and little is kept of them."""
    conversation = Conversation(MESSAGE_MAX)
    conversation.phase = phase
    with suppress(ProtocolError):
        for piece in pieces:
            taken(conversation, piece)


@pytest.mark.parametrize(("data", "complaint"), [
    (struct.pack("!I", 100_000), "100000 bytes"),
    (struct.pack("!II", 8, 2 << 16), "version 2.0"),
    (struct.pack("!I", 3), "shorter"),
    (struct.pack("!II", 9, 3 << 16) + b"x", "has no end"),
])
def test_first_messages_that_are_none(data: bytes, complaint: str) -> None:
    """Sizes are refused before bytes of that number are waited for."""
    with pytest.raises(ProtocolError, match=complaint):
        taken(Conversation(MESSAGE_MAX), data)


def test_oversized_messages() -> None:
    """A message may be large only after the login, and only so large; statements before it are refused."""
    with pytest.raises(ProtocolError, match="20000 bytes; at most 10000"):
        taken(open_conversation(), b"Q" + struct.pack("!I", 20_000))
    for phase, data in [(Phase.LOGIN, b"p" + struct.pack("!I", 10_001)), (Phase.HANDSHAKE, message(b"Q", b"x\0"))]:
        conversation = Conversation(10**9)
        conversation.phase = phase
        with pytest.raises(ProtocolError):
            taken(conversation, data)


def test_clear_bytes_before_tls() -> None:
    """What comes in clear behind the request for TLS is never taken for what came encrypted."""
    conversation = Conversation(MESSAGE_MAX)
    assert taken(conversation, struct.pack("!II", 8, 80_877_103)) == [frontend.Encryption(True)]
    conversation.encrypted()
    conversation.receive(startup(user="u"))
    with pytest.raises(ProtocolError, match="unencrypted bytes"):
        conversation.encrypted()


def test_what_follows_an_error_is_skipped() -> None:
    """Up to Sync, as clients that send many messages at once expect; rows of a COPY that failed, too."""
    conversation = open_conversation()
    conversation.failed()
    assert taken(conversation, message(b"E", b"\0\0\0\0\0") + message(b"S") + message(b"Q", b"x\0")) == [
        frontend.Sync(), frontend.SimpleQuery("x")]
    conversation.copy_begun(simple=True)
    with pytest.raises(ProtocolError, match="rows of COPY"):
        taken(conversation, message(b"S") + message(b"d", b"1\n") + message(b"Q", b"x\0"))
    conversation.copy_ended(failed=True)
    assert taken(conversation, message(b"d", b"1\n") + message(b"c")) == []


@given(TEXTS.filter(bool), TEXTS.filter(bool), st.binary(min_size=18, max_size=18))
def test_scram(password: str, other: str, random: bytes) -> None:
    """Only who has the password can show it, and is shown that the server has its verifier."""
    verifier = scram_verifier(password, b"s" * 16, iterations=1)
    first = b"n,,n=,r=client"
    exchange = ScramExchange.begin(
        b"SCRAM-SHA-256\0" + struct.pack("!I", len(first)) + first, verifier, random)
    for tried in (password, other):
        salted = _salted(tried, verifier.stored_key, password)
        without_proof = b"c=biws,r=" + exchange.nonce.encode()
        exchanged = b"n=,r=client," + exchange.reply() + b"," + without_proof
        key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(key).digest(), exchanged, "sha256")
        proof = bytes(one ^ two for one, two in zip(key, signature, strict=True))
        found = exchange.read_final(without_proof + b",p=" + base64.b64encode(proof))
        fits = scram_verifier(tried, b"s" * 16, iterations=1) == verifier
        assert verifier.fits(*found) == fits
        if fits:
            assert exchange.end(exchanged) == b"v=" + base64.b64encode(
                hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), exchanged, "sha256"))


def _salted(tried: str, stored: str, password: str) -> bytes:
    """Returns what a client computes of a password that it doesn't change, or of what SASLprep makes of it."""
    candidates = [tried.encode()]
    if not tried.isascii():
        from penstock.common.passwords import _prepared
        candidates.append(_prepared(tried).encode())
    return hashlib.pbkdf2_hmac("sha256", candidates[-1], b"s" * 16, 1)


def test_scram_of_another_login() -> None:
    """A last message that belongs to another nonce or binding is refused before its proof is looked at."""
    exchange = ScramExchange.begin(b"SCRAM-SHA-256\0\0\0\0\x0en,,n=,r=client", scram_verifier("p", b"s", 1), b"x")
    for last in (b"c=biws,r=client,p=AA==", b"c=eSws,r=" + exchange.nonce.encode() + b",p=AA==", b"p=", b"\xff"):
        with pytest.raises(ProtocolError):
            exchange.read_final(last)


@given(st.lists(st.text("ab;'\"\\`-/*\n E"), max_size=4))
def test_statements_are_found_once(parts: list[str]) -> None:
    """Every statement is a piece of the text, at its offset; nothing is lost but semicolons, spaces, comments."""
    text = ";".join(parts)
    found = split_statements(text)
    for statement in found:
        assert text[statement.offset:].lstrip().startswith(statement.original)
    assert [each.offset for each in found] == sorted({each.offset for each in found})


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=10))
def test_strings_mean_what_they_do_in_postgresql(value: str) -> None:
    """A backslash in '...' stands for itself, and a quote is written twice."""
    [statement] = split_statements("SELECT '{}' AS \"a b\"".format(value.replace("'", "''")))
    parsed = parse_one(SessionState("UTC", ansi_quotes=True).in_dialect(statement.text))
    assert value in str(parsed.sql()) or "\\" in value or "'" in value
    assert statement.sent_offset(statement.text.index("AS \"a b")) == statement.sent.index("AS \"a b")
    assert statement.sent_offset(statement.text.index(" b\"")) == statement.sent.index(" b\"")


FORMATS = st.sampled_from([CopyFormat(), CopyFormat("csv", ",", ""), CopyFormat("csv", ";", "NULL", "'"),
                           CopyFormat("text", "|", "\\N")])
ROWS = st.lists(st.lists(st.none() | st.text("ab,;|'\"\\\t\nN", min_size=0), min_size=2, max_size=2), max_size=5)


@given(FORMATS, ROWS, st.integers(1, 7))
def test_copied_rows_come_back(form: CopyFormat, rows: list[list[str | None]], size: int) -> None:
    """What COPY TO writes, COPY FROM reads, in pieces of any size."""
    data = b"".join(written_row(form, row) for row in rows)
    reader, found = CopyReader(form), []
    for start in range(0, len(data), size):
        found += reader.rows(data[start:start + size])
    assert found + reader.rows(b"", is_last=True) == rows


@pytest.mark.parametrize(("text", "meant"), [
    ("COPY t FROM STDIN", (True, "`t`", None, CopyFormat())),
    ("copy d.t (a, \"b\") from stdin with (format csv, header true, delimiter ';')",
     (True, "`d`.`t`", ("a", "b"), CopyFormat("csv", ";", "", has_header=True))),
    ("COPY t TO STDOUT WITH CSV HEADER NULL AS 'x'",
     (False, "`t`", None, CopyFormat("csv", ",", "x", has_header=True))),
    ("COPY t TO STDOUT DELIMITER '|'", (False, "`t`", None, CopyFormat("text", "|"))),
])
def test_copy_statements(text: str, meant: tuple[bool, str, tuple[str, ...] | None, CopyFormat]) -> None:
    """Both ways in which options of COPY are written."""
    found = read_copy(text)
    assert (found.is_from, found.table, found.columns, found.form) == meant


@given(st.permutations([*NAMES, *CASES, "a,b", "(x)"]), st.sampled_from('`"'))
def test_names_in_quotes_are_what_they_say(names: list[str], quote: str) -> None:
    """In COPY and elsewhere; names without quotes are in small letters."""
    def written(name: str) -> str:
        return quote + name.replace(quote, 2 * quote) + quote

    columns = ", ".join(map(written, names[2:]))
    found = read_copy(f"COPY {written(names[0])}.{written(names[1])} ({columns}, V) FROM STDIN")
    assert found.table == f"{quoted(names[0])}.{quoted(names[1])}"
    assert found.columns == (*names[2:], "v")
    [statement] = split_statements(f"SELECT {columns} FROM t")
    selected = parse_one(SessionState("UTC", ansi_quotes=True).in_dialect(statement.text))
    assert isinstance(selected, Select)
    assert [item.expression.name for item in selected.items] == names[2:]


@pytest.mark.parametrize("text", ["COPY t FROM '/etc/passwd'", "COPY (SELECT 1) FROM STDIN", "COPY t TO STDOUT BINARY",
                                  "COPY t FROM STDIN (FORMAT csv, ESCAPE '!')", "COPY t FROM STDIN (NOSUCH 1)"])
def test_copy_statements_that_are_refused(text: str) -> None:
    """Files of the server, and what isn't there."""
    with pytest.raises(PenstockError):
        read_copy(text)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=7) | st.integers(0, 2**64 - 1)
       | st.decimals(allow_nan=False, allow_infinity=False, min_value=-10**9, max_value=10**9, places=2))
@example(Decimal("1000000000000000000000.0000000"))
@example(Decimal(f"-{'1234567890' * 7}.{'9' * 60}"))
def test_binary_numbers_are_read_as_they_were(number: Decimal | int) -> None:
    """With their scale, and all of their digits."""
    [read] = read_parameters([numeric_bytes(number)], [1], [NUMERIC])
    assert isinstance(read, Decimal)
    assert (read, read.as_tuple().exponent) == (number, Decimal(number).as_tuple().exponent)


def test_parameters() -> None:
    """Values by their types, as text and in binary; only marks outside of quotes and comments are replaced."""
    values = read_parameters(
        [b"5", struct.pack("!i", -5), b"1.5", struct.pack("!d", 0.5), None, b"it's",
         struct.pack("!q", 1_000_000), b"\0\2\0\0\x40\0\0\2\0\1\x13\x88"],
        [0, 1, 0, 1, 0, 0, 1, 1], [INT4, INT4, FLOAT8, FLOAT8, INT4, 0, TIMESTAMPTZ, NUMERIC])
    assert list(map(str, values)) == ["5", "-5", "1.5", "0.5", "None", "it's", "2000-01-01 00:00:01+00:00", "-1.50"]
    assert ParameterText("$1 $2 '$1' `$1` -- $1\n$6 $1").filled(values) == "5 -5 '$1' `$1` -- $1\n'it\\'s' 5"
    for cell, form, oid in [(b"x", 0, INT4), (b"x", 1, INT4), (b"x", 0, 1007), (b"\xff", 0, 25),
                            (b"\0\1\x7f\xff\0\0\0\0\0\1", 1, NUMERIC)]:
        with pytest.raises(PenstockError, match=r"parameter \$1"):
            read_parameters([cell], [form], [oid])
