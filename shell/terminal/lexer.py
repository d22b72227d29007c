"""The words of the dialect, and a lexer that colours them at the prompt."""

from __future__ import annotations

import re
from typing import ClassVar

from pygments.lexer import RegexLexer, words  # type: ignore[import-untyped]
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Whitespace  # type: ignore[import-untyped]

_KEYWORDS = """
    ADD AFTER ALL ALLOWED_LATENESS ALTER ANALYZE AND ANTI AS ASC ASOF AT_LEAST_ONCE AT_ONCE BETWEEN BIGINT BINARY BLOB
    BOOL BY CACHEMODEL CASE CAST CHECKPOINT CHECKPOINTS CHECKPOINT_INTERVAL CHILD CLOSE_WHEN_IDLE COLUMN COMMENT
    CONNECTION CONNECTIONS CONTAINS CONTINUOUS_WINDOW_CLOSE COUNT_WINDOW CREATE CUT DATABASE DATABASES DECIMAL DELETE
    DELETE_MARK DESC NOTIFY NOTIFY_HISTORY WINDOW_OPEN
    DESCRIBE DISTINCT DLQ DNODE DNODES DOUBLE DROP DURATION ELSE END EVENT EVENT_WINDOW EVERY EXACTLY_ONCE EXISTS
    EXPIRED EXPLAIN FAIL FALSE FILE FILL FILL_HISTORY FLOAT FLUSH FOR FORCE_WINDOW_CLOSE FROM FULL GEOMETRY GROUP
    GUARANTEE HAVING HISTORY_RATE IDLE_TIMEOUT IF IGNORE IN INGESTION INNER INSERT INT INTERVAL INTO IS JOIN JSON
    KEEP KEY LATE LATENCY LEFT LIKE LIMIT LINEAR MATCH MAX_DELAY MAX_FUTURE MAX_SKEW MODIFY NCHAR NEAR NEXT NMATCH NONE
    NORMAL NOT NOTE NULL NULLS NULL_F OFFSET ON ON_ERROR OR ORDER PARTITION PASS PAUSE PRECISION PREV PRIMARY
    PROCESSING RANGE RECALC RECALCULATE RENAME REPLACE REPLAY RESUME RIGHT ROLE ROWS SAMPLE SAVEPOINT SAVEPOINTS SELECT
    SEMI SESSION SET SHOW SINK_CALLS SINK_RATE SKIP SLIDING SLIMIT SMALLINT SNODE SNODES SOFFSET SOURCE_RATE SPLIT
    STABLE STABLES START STATE_LIMIT STATE_TTL STATE_WINDOW STOP STREAM STREAMS SUBTABLE TABLE TABLES TAG TAGS TEST THEN
    TIME TIMESTAMP TIMEZONE TINYINT TRIGGER TRIM TRUE TRUE_FOR TTL TYPE UNION UNSIGNED UNTREATED UPDATE USE USER USERS
    USING VALUE VALUES VALUE_F VARBINARY VARCHAR VARIABLES VERIFY VGROUP VGROUPS WAL_LEVEL
    WAL_RETENTION_PERIOD WAL_RETENTION_SIZE WATERMARK WATERMARKS WHEN WHERE WINDOW_CLOSE WITH WRITER WRITERS
    WRITER_TIMEOUT
    ARRIVAL AVRO CSV DEBEZIUM EARLIEST FORMAT INGEST INGESTS LATEST LINE MAX_MESSAGE MEASUREMENT PATH QOS REFUSE SCHEMA
    TIME_UNIT TOPIC UNKNOWN UPSERT GRANT GRANTS PRIVILEGES READ REVOKE WRITE DEFINER INVOKER SECURITY VIEW VIEWS
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
