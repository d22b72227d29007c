"""The words of the dialect, and a lexer that colours them at the prompt."""

from __future__ import annotations

import re
from typing import ClassVar

from pygments.lexer import RegexLexer, words  # type: ignore[import-untyped]
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Whitespace  # type: ignore[import-untyped]

_KEYWORDS = """
    ADD AFTER ALL ALLOWED_LATENESS ALTER ANALYZE AND ANTI ARRIVAL AS ASC ASOF AT_LEAST_ONCE AT_ONCE AVRO BETWEEN
    BIGINT BINARY BLOB BOOL BY CACHEMODEL CALC_NOTIFY_ONLY CASE CAST CHECKPOINT CHECKPOINTS CHECKPOINT_INTERVAL
    CHILD CLOSE_WHEN_IDLE COLUMN COMMENT CONNECTION CONNECTIONS CONTAINS CONTINUOUS_WINDOW_CLOSE COUNT_WINDOW CREATE
    CSV CUT DATABASE DATABASES DEBEZIUM DECIMAL DEFINER DELETE DELETE_MARK DELETE_RECALC DESC DESCRIBE DISTINCT DLQ
    DNODE DNODES DOUBLE DROP DURATION EARLIEST ELSE END EVENT EVENT_TYPE EVENT_WINDOW EVERY EXACTLY_ONCE EXISTS
    EXPIRED EXPIRED_TIME EXPLAIN FAIL FALSE FILE FILL FILL_HISTORY FILL_HISTORY_FIRST FLOAT FLUSH FOR FORCE_OUTPUT
    FORCE_WINDOW_CLOSE FORMAT FROM FULL GEOMETRY GRANT GRANTS GROUP GUARANTEE HAVING HISTORY_RATE IDLE_TIMEOUT IF
    IGNORE IGNORE_DISORDER IGNORE_NODATA_TRIGGER IN INGEST INGESTION INGESTS INNER INSERT INT INTERVAL INTO INVOKER
    IS JOIN JSON KEEP KEY LATE LATENCY LATEST LEFT LIKE LIMIT LINE LINEAR LOW_LATENCY_CALC MATCH MAX_DELAY
    MAX_FUTURE MAX_MESSAGE MAX_SKEW MEASUREMENT MODIFY NCHAR NEAR NEXT NMATCH NONE NORMAL NOT NOTE NOTIFY
    NOTIFY_HISTORY NOTIFY_OPTIONS NULL NULLS NULL_F OFFSET ON ON_ERROR ON_FAILURE_PAUSE OR ORDER OUTPUT_SUBTABLE
    PARTITION PASS PATH PAUSE PERIOD PRECISION PREV PRE_FILTER PRIMARY PRIVILEGES PROCESSING QOS RANGE READ RECALC
    RECALCULATE REFUSE RENAME REPLACE REPLAY RESUME REVOKE RIGHT ROLE ROWS SAMPLE SAVEPOINT SAVEPOINTS SCHEMA
    SECURITY SELECT SEMI SESSION SET SHOW SINK_CALLS SINK_RATE SKIP SLIDING SLIMIT SMALLINT SNODE SNODES SOFFSET
    SOURCE_RATE SPLIT STABLE STABLES START STATE_LIMIT STATE_TTL STATE_WINDOW STOP STREAM STREAMS STREAM_OPTIONS
    SUBTABLE TABLE TABLES TAG TAGS TEST THEN TIME TIMESTAMP TIMEZONE TIME_UNIT TINYINT TOPIC TRIGGER TRIM TRUE
    TRUE_FOR TTL TYPE UNION UNKNOWN UNSIGNED UNTREATED UPDATE UPSERT USE USER USERS USING VALUE VALUES VALUE_F
    VARBINARY VARCHAR VARIABLES VERIFY VGROUP VGROUPS VIEW VIEWS WAL_LEVEL WAL_RETENTION_PERIOD WAL_RETENTION_SIZE
    WATERMARK WATERMARKS WHEN WHERE WINDOW_CLOSE WINDOW_OPEN WITH WRITE WRITER WRITERS WRITER_TIMEOUT
"""

KEYWORDS: tuple[str, ...] = tuple(_KEYWORDS.split())

PSEUDO_COLUMNS: tuple[str, ...] = (
    "_c0", "_rowts", "_wstart", "_wend", "_wduration", "_qstart", "_qend", "_irowts", "_isfilled", "tbname",
)


class PenstockLexer(RegexLexer):  # type: ignore[misc]  # pygments has no types
    """Colours statements of the dialect as far as they have been typed."""

    name: ClassVar[str] = "Penstock SQL"
    flags = re.IGNORECASE | re.DOTALL

    tokens: ClassVar[dict[str, list[tuple[object, ...]]]] = {
        "root": [
            (r"\s+", Whitespace),
            (r"--[^\n]*", Comment.Single),
            (r"/\*.*?(\*/|$)", Comment.Multiline),
            (r"^\.[a-z]+", Name.Function),
            (r"'(?:[^'\\]|\\.|'')*('|$)", String.Single),
            (r'"(?:[^"\\]|\\.|"")*("|$)', String.Double),
            (r"`[^`]*(`|$)", Name.Variable),
            (r"\d+[buasmhdwny]\b", Number.Integer),
            (r"(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\b", Number.Float),
            (words(KEYWORDS, prefix=r"\b", suffix=r"\b"), Keyword),
            (words(PSEUDO_COLUMNS, prefix=r"\b", suffix=r"\b"), Name.Builtin),
            (r"[a-z_]\w*(?=\s*\()", Name.Function),
            (r"[a-z_]\w*", Name),
            (r"\\g", Punctuation),
            (r"[-+*/%&|=<>!]+", Operator),
            (r".", Punctuation),
        ],
    }
