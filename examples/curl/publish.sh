#!/usr/bin/env bash
# Publishes the lines of standard input, each one JSON message, one after the other, and
# prints Rejoin's answers. It stops at the first one that is not stored for sure.
#
#   echo '{"order":17}' | ./publish.sh demo main [key]
#
# REJOIN_URL is Rejoin's address, REJOIN_TOKEN is a bearer token. The idempotency key of a
# line is the key and the line's number: run it again with the same key, within two minutes,
# and no stored line is stored again.
#
# In session and stream, each character besides letters, digits, "-", ".", "_" and "~" has to be
# percent-encoded: a/b is a%2Fb.
set -euo pipefail

if [ $# -lt 2 ]; then
	echo 'usage: publish.sh SESSION STREAM [KEY]' >&2
	exit 2
fi
session=$1 stream=$2 key=${3:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
url=${REJOIN_URL:-http://127.0.0.1:8080}
url=${url%/}/v1/sessions/$session/streams/$stream/events
headers=(-H 'Content-Type: application/json' ${REJOIN_TOKEN:+-H "Authorization: Bearer $REJOIN_TOKEN"})
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

# curl repeats requests without an answer, or with 408, 429 and 5xx, while Rejoin is sure to know
# the key (two minutes, less the time of the last attempt), and waits for Retry-After.
repeat=(--max-time 15 --retry 1000 --retry-delay 1 --retry-max-time 100 --retry-all-errors)

n=0
while IFS= read -r message || [ -n "$message" ]; do
	n=$((n + 1))
	status=$(curl -sS "${repeat[@]}" "$url" "${headers[@]}" -H "Idempotency-Key: $key-$n" \
		--data-binary @- -o "$answer" -w '%{http_code}' <<<"$message") || status=000
	case $status in
	201) echo "$(cat "$answer")" ;;
	000 | 408 | 429 | [235]*) echo "line $n: it may be stored or not; the key is $key: $(cat "$answer")" >&2 && exit 75 ;;
	*) echo "line $n: refused: $(cat "$answer")" >&2 && exit 1 ;;
	esac
done
