"""Log lines as JSON objects, for programs that gather them."""

import json
import logging
from datetime import UTC, datetime

FIELDS = "metaprobe"
"""The attribute of a record that holds what is known of its request."""


class JsonLine(logging.Formatter):
    """One object a line: time (UTC, ISO 8601), level, logger, message, and of a request what is known of it."""

    def format(self, record: logging.LogRecord) -> str:
        known = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            known["exception"] = self.formatException(record.exc_info)
        return json.dumps(known)
