#!/usr/bin/env python3
"""Publishes the lines of standard input, each one JSON message.

    echo '{"order":17}' | python3 publish.py demo main

REJOIN_URL is Rejoin's address, REJOIN_TOKEN is a bearer token.
"""

import argparse
import http.client
import json
import os
import random
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

# Rejoin remembers a key for two minutes. The last attempt begins within this many seconds.
REPEAT_WITHIN = 100
TIMEOUT = 15
# Codes for which a stopped request is not repeated.
ENDED = ("session_closed", "stream_closed", "invalid_body")


class PublishError(Exception):
    """Not stored for sure. `unknown` reports whether it may be stored all the same."""

    def __init__(self, reason, unknown):
        super().__init__(reason)
        self.unknown = unknown


def publish(base, session, stream, message, key, token=None):
    """Stores one message, JSON in UTF-8, and returns {"id", "duplicate"}."""
    return repeat(base, session, stream, message, key, token, "application/json", lambda status, answer: json.loads(answer) if status == 201 else None)


def publish_many(base, session, stream, messages, key, token=None):
    """Stores messages in one request and returns the result of each, in their order:
    {"index", "id", "duplicate"}, or {"index", "code", "detail"} for a refused one.

    The key counts together with the index, so repeating all of it stores nothing twice.
    """

    def results(status, answer):
        if status != 200:
            return None
        *each, summary = [json.loads(line) for line in answer.splitlines()]
        if summary["stopped"] and summary["stopped"]["code"] in ENDED:
            raise PublishError(json.dumps(summary["stopped"]), summary["unknown"] > 0)
        return each if summary["stopped"] is None and summary["unknown"] == 0 else None

    return repeat(base, session, stream, b"\n".join(messages), key, token, "application/x-ndjson", results)


def repeat(base, session, stream, body, key, token, content_type, done):
    """Posts until done returns something, under the same key."""
    quoted = [urllib.parse.quote(name, safe="") for name in (session, stream)]
    url = base + "/v1/sessions/{}/streams/{}/events?results=each".format(*quoted)
    headers = {"Content-Type": content_type, "Idempotency-Key": key}
    if token:
        headers["Authorization"] = "Bearer " + token
    deadline = time.time() + REPEAT_WITHIN  # a monotonic clock stands still while the machine sleeps
    pause, unknown = 0.1, False
    while True:
        retry_after = 0
        try:
            # A large body takes longer; the attempt ends before the key is forgotten.
            limit = min(TIMEOUT + len(body) / 32000, deadline + TIMEOUT - time.time())
            try:
                response = urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=limit)
            except urllib.error.HTTPError as error:
                response = error  # is a response as well
            with response:
                if response.headers.get_content_type() == "text/event-stream":  # of a GET, without an end
                    raise PublishError("the request was redirected to " + response.url, True)
                answer = response.read()
            moved = response.url != url  # a redirect has made it a GET
            if response.status < 300:
                result = done(response.status, answer)
                if result is not None:
                    return result
                unknown, reason = True, "not all has an answer"
            else:
                reason = answer.decode(errors="replace")
                if 400 <= response.status < 500 and response.status not in (408, 425, 429):
                    raise PublishError(reason, unknown or moved)  # refused for good
                # These two mean that it is not stored. A proxy's 502 or 504, say, does not.
                if moved or response.status != 429 and code_of(reason) not in ("unavailable", "storage_full"):
                    unknown = True
                retry_after = seconds(response.headers.get("Retry-After"))
        except PublishError as error:
            error.unknown |= unknown
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:  # no answer, a part of one, or a proxy's
            unknown, reason = True, str(error)
        wait = max(retry_after, pause * random.uniform(1, 1.5))
        if time.time() + wait > deadline:
            raise PublishError(reason, unknown)
        if pause == 0.1:  # once a request
            print(f"{base}: {reason}; trying again", file=sys.stderr, flush=True)
        time.sleep(wait)
        if time.time() > deadline:  # the machine slept
            raise PublishError(reason, unknown)
        pause = min(2 * pause, 5)


def seconds(retry_after):
    try:
        return float(retry_after or 0)
    except ValueError:  # a date, as proxies may send
        return 0


def code_of(problem):
    try:
        return json.loads(problem)["code"]
    except (ValueError, KeyError, TypeError):
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("session")
    parser.add_argument("stream")
    parser.add_argument("--key", default=str(uuid.uuid4()), help="idempotency keys are this and the number of the line")
    parser.add_argument("--many", action="store_true", help="all lines in one request")
    args = parser.parse_args()
    base, token = os.environ.get("REJOIN_URL", "http://127.0.0.1:8080").rstrip("/"), os.environ.get("REJOIN_TOKEN")
    lines = (line.strip() for line in sys.stdin.buffer)  # text would have the encoding of the terminal
    messages = (line for line in lines if line)
    try:
        if args.many:
            results = publish_many(base, args.session, args.stream, list(messages), args.key, token)
            for result in results:
                print(json.dumps(result))
            return 1 if any("code" in result for result in results) else 0
        for n, message in enumerate(messages, 1):
            print(json.dumps(publish(base, args.session, args.stream, message, f"{args.key}-{n}", token)), flush=True)
    except PublishError as error:
        print(f"{'it may be stored or not' if error.unknown else 'not stored'}; the key is {args.key}: {error}", file=sys.stderr)
        return 75 if error.unknown else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
