#!/usr/bin/env python3
"""Prints the messages of a stream, each once, over restarts of Rejoin and of itself.

    python3 subscribe.py demo main place.txt

The file holds the cursor after the last handled event. REJOIN_URL is Rejoin's address,
REJOIN_TOKEN is a bearer token.
"""

import http.client
import json
import os
import random
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

SILENCE = 45  # seconds without a byte after which a connection is dead: three heartbeats


def events(request):
    """Yields (type, id or None, data) until the connection ends. An event that was cut off is left out."""
    try:
        with urllib.request.urlopen(request, timeout=SILENCE) as response:
            if response.status == 204:  # closed, without an event after the cursor
                yield "close", None, ""
            kind, place, data = "message", None, []
            for line in response:
                name, _, value = line.decode(errors="replace").rstrip("\r\n").partition(":")
                value = value.removeprefix(" ")
                if name == "event":
                    kind = value
                elif name == "id":
                    place = value
                elif name == "data":
                    data.append(value)
                elif name == "retry" and value.isdecimal():
                    yield "retry", None, value
                elif line in (b"\n", b"\r\n"):
                    if data:
                        yield kind, place, "\n".join(data)
                    kind, place, data = "message", None, []
    except (OSError, http.client.HTTPException) as error:  # it is down, or the connection broke: reconnect
        if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in (408, 425, 429):
            raise
        print(f"{request.full_url}: {error}; trying again", file=sys.stderr, flush=True)


def follow(url, load, save, on_message, on_gap, token=None):
    """Returns when the stream is closed and all its events are handled."""
    pause = 3.0
    while True:
        headers = {"Accept": "text/event-stream"}
        if place := load():
            headers["Last-Event-ID"] = place
        if token:
            headers["Authorization"] = "Bearer " + token
        # Exceptions of load, save and the callbacks end the program; only events reconnects.
        for kind, place, data in events(urllib.request.Request(url, headers=headers)):
            if kind == "retry":
                pause = int(data) / 1000
            elif kind == "gap":
                on_gap(json.loads(data))
            elif data and kind not in ("connect", "cursor", "close", "expiring") and not kind.startswith("rejoin."):  # empty: a proxy's; rejoin.: of a later version
                on_message(kind, place, json.loads(data))
            if place:
                save(place)  # after the handled event, never before it
            if kind == "close":
                return
        time.sleep(pause * random.uniform(1, 1.5))


class File:
    """A cursor in a file that is replaced as a whole, so that a crash leaves the old one."""

    def __init__(self, path):
        self.path = path

    def load(self):
        try:
            with open(self.path, encoding="ascii") as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""

    def save(self, place):
        with open(self.path + ".new", "w", encoding="ascii") as file:
            file.write(place)
        os.replace(self.path + ".new", self.path)


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: subscribe.py SESSION STREAM FILE")
    session, stream, path = sys.argv[1:]
    quoted = [urllib.parse.quote(name, safe="") for name in (session, stream)]
    url = os.environ.get("REJOIN_URL", "http://127.0.0.1:8080").rstrip("/") + "/v1/sessions/{}/streams/{}/events".format(*quoted)
    file = File(path)
    follow(
        url,
        file.load,
        file.save,
        on_message=lambda kind, place, message: print(place, kind, json.dumps(message, separators=(",", ":")), flush=True),
        # Get the missed events from elsewhere: ask the service that has the whole state.
        on_gap=lambda gap: print("events are missing:", gap["reason"], file=sys.stderr, flush=True),
        token=os.environ.get("REJOIN_TOKEN"),
    )


if __name__ == "__main__":
    main()
