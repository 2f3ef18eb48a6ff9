#!/usr/bin/env bash
# Publishes a file of any length, a JSON message on each line, in one request.
#
#   ./publish-many.sh demo main messages.ndjson [key]
#
# REJOIN_URL is Rejoin's address, REJOIN_TOKEN is a bearer token. The key counts together
# with the index of a line in the file, so a repetition of the whole file stores the missing
# messages and none twice, within two minutes.
#
# In session and stream, each character besides letters, digits, "-", ".", "_" and "~" has to be
# percent-encoded: a/b is a%2Fb.
set -euo pipefail

if [ $# -lt 3 ]; then
	echo 'usage: publish-many.sh SESSION STREAM FILE [KEY]' >&2
	exit 2
fi
session=$1 stream=$2 file=$3 key=${4:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
if [ ! -r "$file" ] || [ -d "$file" ]; then
	echo "cannot read $file" >&2
	exit 1
fi
url=${REJOIN_URL:-http://127.0.0.1:8080}
url=${url%/}/v1/sessions/$session/streams/$stream/events
headers=(-H 'Content-Type: application/x-ndjson' -H 'Expect:' ${REJOIN_TOKEN:+-H "Authorization: Bearer $REJOIN_TOKEN"})
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

while [ "$SECONDS" -lt 100 ]; do
	# The last attempt ends before the key is forgotten.
	status=$(curl -gsS --max-time $((115 - SECONDS)) -X POST -T "$file" "$url" "${headers[@]}" -H "Idempotency-Key: $key" \
		-o "$answer" -w '%{http_code}') || status=000
	case $status in
	200)
		# The summary. "stopped" is about the log or the session, "unknown" about messages
		# without an answer; "refused" is final, and "errors" has the reasons.
		if grep -q '"unknown":0,' "$answer" && grep -q '"stopped":null}' "$answer"; then
			echo "$(cat "$answer")"
			grep -q '"refused":0,' "$answer"
			exit
		fi
		# A repeat would stop at the same place.
		if grep -qE '"stopped":\{[^}]*"code":"(session_closed|stream_closed|invalid_body)"' "$answer"; then
			echo "stopped: $(cat "$answer")" >&2 && exit 1
		fi
		;;
	000 | 408 | 429 | [235]*) ;;
	*) echo "refused: $(cat "$answer")" >&2 && exit 1 ;;
	esac
	sleep 1
done
echo "not all of it is stored for sure; the key is $key: $(cat "$answer")" >&2
exit 75
