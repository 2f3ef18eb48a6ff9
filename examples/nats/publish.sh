#!/usr/bin/env bash
# Publishes the lines of standard input, each one JSON message, through ingest on NATS, and
# prints its answers. It stops at the first one that is not stored for sure.
#
#   echo '{"order":17}' | ./publish.sh demo main [key]
#
# It needs the NATS command line; NATS_URL and NATS_CREDS, or a context of it, name the
# server. In session and stream, each character besides letters, digits, "-" and "_" has
# to be written =XX, in upper-case hexadecimal: a/b is a=2Fb.
set -euo pipefail

if [ $# -lt 2 ]; then
	echo 'usage: publish.sh SESSION STREAM [KEY]' >&2
	exit 2
fi
session=$1 stream=$2 key=${3:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}

command -v nats >/dev/null || {
	echo 'nats is not installed: go install github.com/nats-io/natscli/nats@latest' >&2
	exit 1
}

LC_ALL=C # lengths in bytes
n=0
while IFS= read -r message || [ -n "$message" ]; do
	n=$((n + 1))
	if [ ${#message} -gt 131000 ]; then # Linux takes 128 KiB in an argument
		echo "line $n: not sent: it has ${#message} bytes, and this program sends 131000 at most" >&2
		exit 1
	fi
	deadline=$((SECONDS + 100)) # the log knows the key for two minutes
	while :; do
		# --no-templates keeps {{ as it is, and -- keeps -5; standard input is the loop's.
		# A message without an answer may be stored or not, so it is sent again.
		answer=$(nats request --raw --no-templates --timeout=5s -H "Idempotency-Key:$key-$n" -- "mcp.ingest.$session.$stream" "$message" </dev/null) || answer=
		case $answer in
		'{"id":'*) echo "$answer" && break ;;
		'' | *'"status":503'* | *'"status":429'* | *'"status":500'*) ;;
		*) echo "line $n: refused: $answer" >&2 && exit 1 ;;
		esac
		sleep 0.5
		if [ "$SECONDS" -ge "$deadline" ]; then
			echo "line $n: it may be stored or not; the key is $key: $answer" >&2
			exit 75
		fi
	done
done
